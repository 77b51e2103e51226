"""Engines that train runs: on this machine, by Ray, or by Slurm."""
