"""Benchmarks: `python -m scripts.bench SUBJECT` measures things side by side in one process and prints ratios."""

import utils  # noqa: F401 (before torch: it sets how OpenMP's threads wait)
