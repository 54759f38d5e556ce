"""Tests of `reconcile`."""
