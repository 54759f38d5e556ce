"""A state machine that tries the whole loop against a Slurm, a folder and a store that do their worst."""
