"""A YAML file becomes a checked list of runs. Pure; may import only the leaves."""
