"""The reconciler against thousands of histories of a nasty Slurm, in simulated time."""
