"""Tests against a real, private Slurm cluster."""
