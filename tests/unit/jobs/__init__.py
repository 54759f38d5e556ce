"""Tests of `jobs`."""
