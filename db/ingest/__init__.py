"""Copy the spools of an attempt (append-only JSON lines) into the store.

The parsers (`lines`) and the reader of files (`reader`) need the standard library only, and forwarders
use them too: nothing is imported here.
"""
