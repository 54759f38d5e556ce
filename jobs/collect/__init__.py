"""Find the metrics of a script that reports none.

A script that calls `report` is left alone. Otherwise the first node's agent looks, ten times a second, at the output of
the first rank, and every ten seconds for TensorBoard's event files and the `trainer_state.json` of Transformers. The
source with the most losses becomes the source of the attempt: its values are appended to the spool as if the script had
reported them, and an event names it.
"""
