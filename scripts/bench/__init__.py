"""Benchmarks: ratios of things measured side by side in one run. `python -m scripts.bench <what>`."""
