"""Classifies ended attempts: evidence in, failure class with its proof out. Pure; may import executors and below."""
