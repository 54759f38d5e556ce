"""Pure tests, in the order of the packages: no torch, DeepSpeed, Slurm or database server (`make check`)."""
