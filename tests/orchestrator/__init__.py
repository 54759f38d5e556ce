"""Tests of the login-node side."""
