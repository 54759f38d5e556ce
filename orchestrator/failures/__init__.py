"""Classify ended attempts: evidence in, failure class with its proof out. Pure."""
