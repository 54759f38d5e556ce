"""Results: the figures of runs, their comparison, and the report. May import campaign and below.

Imports go one way: `page` -> `compare` -> `measure`.
"""
