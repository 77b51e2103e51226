"""Benchmarks: ratios of things measured side by side in one run. `python -m scripts.bench <what>`."""

import utils  # noqa: F401 (before torch: threads wait as they do in runs)
