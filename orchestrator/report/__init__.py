"""Results: the figures of runs, their comparison, and the report.

Imports go one way: `page` -> `compare` -> `measure`.
"""
