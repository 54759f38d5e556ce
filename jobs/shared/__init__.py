"""Layouts, formats and checks for login node and compute node."""
