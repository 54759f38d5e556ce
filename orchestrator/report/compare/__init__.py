"""What the runs show beside each other: statistics, baselines, recommendations. May import `measure`."""
