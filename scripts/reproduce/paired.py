"""Paired comparisons: differences seed by seed, their mean, its 95 % t-interval, and how many are above zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Paired:
    """Differences, one a seed."""

    differences: tuple[float, ...]

    @property
    def n(self) -> int:
        return len(self.differences)

    @property
    def mean(self) -> float | None:
        return mean(self.differences) if self.differences else None

    @property
    def wins(self) -> int:
        return sum(difference > 0 for difference in self.differences)

    @property
    def interval(self) -> tuple[float, float] | None:
        return self.interval_at(CONFIDENCE)

    def interval_at(self, confidence: float) -> tuple[float, float] | None:
        """Of the mean, with n - 1 degrees of freedom; one difference has none."""
        if self.n < 2:
            return None
        from scipy.stats import t

        reach = t.ppf((1 + confidence) / 2, self.n - 1) * stdev(self.differences) / math.sqrt(self.n)
        return self.mean - reach, self.mean + reach

    @property
    def is_above(self) -> bool:
        return self.interval is not None and self.interval[0] > 0

    @property
    def is_below(self) -> bool:
        return self.interval is not None and self.interval[1] < 0


def averaged(cells: Sequence[dict[int, float]]) -> Paired:
    """Of differences by seed of several cells: the mean over the cells for every seed that all of them have."""
    seeds = sorted(set.intersection(*(set(cell) for cell in cells))) if cells else []
    return Paired(tuple(mean(cell[seed] for cell in cells) for seed in seeds))
