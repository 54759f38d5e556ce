"""Tests of the compute-node side."""
