"""The node side of `campaign doctor`."""
