"""What login node and compute node both use: layouts, formats, checks. May import `db` and `files`."""
