"""Campaign specs to start from."""
