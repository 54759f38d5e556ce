"""Tests of the built-in trainer."""
