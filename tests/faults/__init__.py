"""Every fault that a campaign must survive, on a real private Slurm, and the soak that mixes them."""
