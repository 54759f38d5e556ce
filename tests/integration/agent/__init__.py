"""Tests with the real thing: agent."""
