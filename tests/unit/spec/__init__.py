"""Tests of `spec`."""
