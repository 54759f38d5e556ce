"""Predicts the memory of a run, and the changes that make it fit. May import failures and below."""
