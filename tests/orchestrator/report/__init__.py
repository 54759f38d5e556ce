"""Tests of what comes out."""
