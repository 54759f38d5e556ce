"""Results as rows, files and frames."""
