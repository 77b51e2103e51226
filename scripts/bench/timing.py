"""Interleaved timing: every repetition runs each candidate once, so that a noisy machine is unfair to none."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import numpy as np
import torch


def now() -> float:
    """Once a GPU is done with what it was given."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def interleaved(
    candidates: dict[str, Callable[[], object]], repetitions: int, warmup: int = 3
) -> dict[str, np.ndarray]:
    """Seconds of every repetition of every candidate, in rotating order."""
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
    """Median of the paired ratios with a 95 % bootstrap interval."""
    ratios = seconds / base
    draws = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return {"ratio": float(np.median(ratios)), "low": float(low), "high": float(high)}


def against(seconds: dict[str, np.ndarray], base: str) -> dict[str, dict[str, float]]:
    """Median milliseconds and ratio to `base` of every candidate."""
    return {
        name: {"ms": float(np.median(times) * 1e3), **ratio(times, seconds[base])} for name, times in seconds.items()
    }


def shown(entry: dict[str, float]) -> str:
    return f"{entry['ratio']:.2f} [{entry['low']:.2f}, {entry['high']:.2f}]"
