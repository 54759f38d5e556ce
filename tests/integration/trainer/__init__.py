"""Tests with the real thing: trainer."""
