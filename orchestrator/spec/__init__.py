"""A YAML file becomes a checked list of runs: files, but no store and no cluster."""
