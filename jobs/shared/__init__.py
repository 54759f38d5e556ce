"""What login node and compute node both use: files, layouts, formats. May import `db` and nothing else of `jobs`."""
