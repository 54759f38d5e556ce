"""Tests of `export`."""
