"""The figures of each run from the store, without comparison. Imports nothing of `compare` and `page`."""
