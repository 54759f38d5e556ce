"""Tests with the real thing: local."""
