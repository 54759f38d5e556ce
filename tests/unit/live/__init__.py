"""Tests of `live`."""
