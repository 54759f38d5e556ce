"""Where attempts run: Slurm, or this machine. The only place that starts jobs."""
