"""What each run measured: figures from the store, no comparison. Imports nothing of `compare` and `page`."""
