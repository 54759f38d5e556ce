"""Tests of `executors`."""
