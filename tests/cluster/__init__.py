"""A real one-host Slurm and the pipeline on it: `make test-cluster`."""
