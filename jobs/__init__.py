"""Compute node: one attempt of a run."""
