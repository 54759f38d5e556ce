"""Tests of `campaign`."""
