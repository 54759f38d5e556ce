"""Tests with the real thing: slurm."""
