"""Copy the spools of an attempt (append-only JSON lines) into the store.

`lines` and `reader` need the standard library only, and forwarders use them too: nothing is imported here.
"""
