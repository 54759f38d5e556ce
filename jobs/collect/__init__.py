"""Find the metrics of a script that reports none.

The first node's agent looks, ten times a second, at the output of the first rank, and every ten seconds for
TensorBoard's event files. The source with the most losses becomes the attempt's source.
"""
