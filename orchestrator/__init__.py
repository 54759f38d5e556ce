"""The login node: a spec becomes jobs, jobs become results. The packages are layers: see docs/architecture.md.

Directly here stand only leaves that every package may use.
"""
