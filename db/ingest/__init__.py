"""Takes the spools of an attempt (append-only JSON lines) into the store. May import the rest of `db`, nothing else.

The parsers (`lines`, `gpu_lines`) and the reader of files (`reader`) need the standard library only, and forwarders
use them too: nothing is imported here.
"""
