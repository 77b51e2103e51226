"""Where runs are run: on this machine, by Ray, or by Slurm. Each is a thin adapter around `worker.Worker`."""
