"""Compute node: one attempt of one run."""
