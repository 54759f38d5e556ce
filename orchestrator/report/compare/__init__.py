"""Comparisons of conditions: statistics, baselines, recommendations."""
