"""Predict the memory of a run, and the changes that make it fit."""
