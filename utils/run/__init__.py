"""A run: building it, the loop, evaluation, checkpoints, records and whoever watches."""
