"""Interleaved timing: every repetition runs each candidate once, so that noise of the machine hits all alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch


def now() -> float:
    """Return the time in seconds, after a GPU has finished its queue."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def interleaved(
    candidates: Mapping[str, Callable[[], object]], repetitions: int, warmup: int = 3
) -> dict[str, np.ndarray]:
    """Return the seconds of every repetition of every candidate; the order rotates."""
    names = list(candidates)
    seconds = {name: np.zeros(repetitions) for name in names}
    for name in names * warmup:
        candidates[name]()
    gc.collect()
    gc.disable()
    try:
        for repetition in range(repetitions):
            for name in names[repetition % len(names) :] + names[: repetition % len(names)]:
                start = now()
                candidates[name]()
                seconds[name][repetition] = now() - start
    finally:
        gc.enable()
    return seconds


def ratio(seconds: np.ndarray, base: np.ndarray) -> dict[str, float]:
    """Return the median of the paired ratios with a 95 % bootstrap interval."""
    ratios = seconds / base
    draws = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return {"ratio": float(np.median(ratios)), "low": float(low), "high": float(high)}


def ratios_to(seconds: dict[str, np.ndarray], base: str) -> dict[str, dict[str, float]]:
    """Return the median milliseconds of every candidate and its ratio to `base`."""
    return {name: {"ms": median_ms(times), **ratio(times, seconds[base])} for name, times in seconds.items()}


def median_ms(seconds: np.ndarray) -> float:
    return float(np.median(seconds)) * 1e3


def ratio_text(entry: Mapping[str, float]) -> str:
    return f"{entry['ratio']:.3f} [{entry['low']:.3f}, {entry['high']:.3f}]"
