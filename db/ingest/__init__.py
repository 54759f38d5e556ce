"""Takes the spools of an attempt (append-only JSON lines) into the store. May import the rest of `db`, nothing else.

`lines` and `gpu_lines` are pure parsers on the standard library, which the forwarders use too; so nothing is imported here.
"""
