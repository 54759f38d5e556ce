"""Results of a campaign: what its runs measured, how they compare, and the page that says so.

Imports go one way: ``page`` -> ``compare`` -> ``measure``.
"""
