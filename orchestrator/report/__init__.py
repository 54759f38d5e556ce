"""Results: what runs measured, how they compare, and the report that says so. May import campaign and below.

Imports go one way: `page` -> `compare` -> `measure`.
"""
