"""Tests of `db`."""
