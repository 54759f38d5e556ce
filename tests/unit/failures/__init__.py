"""Tests of `failures`."""
