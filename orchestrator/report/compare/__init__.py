"""Comparisons of conditions: statistics, baselines, recommendations. May import `measure`."""
