"""Predicts the memory of a run, and what to change so that it fits. May import failures and below."""
