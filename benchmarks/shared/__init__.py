"""What benchmarks share, and none itself."""
