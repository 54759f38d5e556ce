"""Results as rows, files and frames. May import campaign and below."""
