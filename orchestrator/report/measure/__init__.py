"""The figures of each run from the store."""
