"""Find the metrics of a script that reports none. May import `jobs.shared` and `files`.

A script that calls `report` is left alone. Otherwise the first node's agent looks, every two seconds, at the output of
the first rank, at TensorBoard's event files and at the `trainer_state.json` of Transformers. The source with the most
losses becomes the source of the attempt: its values are appended to the spool as if the script had reported them, and
an event names it. The size of the output is looked at ten times a second, which gives the lines their times.
"""
