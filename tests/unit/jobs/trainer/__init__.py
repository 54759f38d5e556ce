"""Tests of `jobs.trainer`."""
