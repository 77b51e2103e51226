"""Comparisons of runs: sums of results with signs, paired by seed, and the interval of their mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from utils.studies.plans import Comparison, Experiment
from utils.studies.selection import Selection

CONFIDENCE = 0.95
NOISE = 1e-6  # percentage points; a standard error below it is rounding, not spread


def records_by_seed(experiment: Experiment, selection: Selection) -> dict[int, dict[str, Any]]:
    """Return the records of the experiment's finished runs."""
    runs = zip(selection.seeds, selection.final(experiment) or (), strict=False)
    return {seed: record for seed, run in runs if (record := selection.runs.record(run)) is not None}


def values_by_seed(comparison: Comparison, selection: Selection) -> dict[int, float]:
    """Return the comparison's value for every seed whose runs are all finished and have the metric."""
    records = [records_by_seed(experiment, selection) for experiment in comparison.experiments]
    values = {seed: comparison.total([value_at(by_seed.get(seed), comparison.metric) for by_seed in records])
              for seed in selection.seeds}  # fmt: skip
    return {seed: value for seed, value in values.items() if value is not None}


def value_at(record: dict[str, Any] | None, metric: Sequence[str]) -> Any:
    """Return the record's value at this path, None if it has none."""
    value: Any = record
    for name in metric:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def dropped_seeds(comparison: Comparison, selection: Selection) -> list[int]:
    """Return the seeds that count for nothing because only some of the comparison's runs are finished."""
    records = [records_by_seed(experiment, selection) for experiment in comparison.experiments]
    return [seed for seed in selection.seeds if len({seed in by_seed for by_seed in records}) == 2]


@dataclass(frozen=True)
class Paired:
    """Differences, one per seed; or means over several cells, one for every seed that any of them has."""

    differences: tuple[float, ...]
    pooled: tuple[float, float] | None = None  # mean and standard error, if the cells do not share all seeds

    @property
    def n(self) -> int:
        return len(self.differences)

    @property
    def mean(self) -> float | None:
        if self.pooled is not None:
            return self.pooled[0]
        return mean(self.differences) if self.differences else None

    @property
    def wins(self) -> int:
        return sum(difference > 0 for difference in self.differences)

    @property
    def interval(self) -> tuple[float, float] | None:
        return self.interval_at(CONFIDENCE)

    def interval_at(self, confidence: float) -> tuple[float, float] | None:
        """Return the t-interval of the mean with n - 1 degrees of freedom; None without two differences that differ."""
        if self.n < 2:
            return None
        from scipy.stats import t

        center, error = self.pooled or (mean(self.differences), stdev(self.differences) / math.sqrt(self.n))
        if error < NOISE:
            return None
        low, high = t.interval(confidence, self.n - 1)
        return center + low * error, center + high * error

    def interval_text(self, digits: int) -> str:
        if self.interval is None:
            return "no interval" if self.n > 1 else "–"
        return "[{:+.{digits}f}, {:+.{digits}f}]".format(*self.interval, digits=digits)

    def text(self, digits: int) -> str:
        """Return mean, interval and number of differences."""
        if self.mean is None:
            return "–"
        interval = f" {self.interval_text(digits)}" if self.n > 1 else ""
        return f"{self.mean:+.{digits}f}{interval}, n = {self.n}"

    @property
    def is_above(self) -> bool:
        return self.interval is not None and self.interval[0] > 0

    @property
    def is_below(self) -> bool:
        return self.interval is not None and self.interval[1] < 0


def averaged(cells: Sequence[dict[int, float]]) -> Paired:
    """Return the mean over cells of differences by seed; a seed that a cell lacks still counts in the others.

    Cells that share all seeds are averaged seed by seed. Otherwise the mean is that of the cells' means, and its
    standard error is clustered by seed: with residuals e = d - mean of the cell, it is the root of the sum over seeds
    of (sum over cells of e / (cells sqrt(n (n - 1))))^2, where n is the cell's number of seeds. For cells that share
    all seeds this is the usual one.
    """
    seeds = sorted({seed for cell in cells for seed in cell})
    if all(cell.keys() == set(seeds) for cell in cells) or any(len(cell) < 2 for cell in cells):
        shared = [seed for seed in seeds if all(seed in cell for cell in cells)]
        return Paired(tuple(mean(cell[seed] for cell in cells) for seed in shared))
    by_seed = tuple(mean(cell[seed] for cell in cells if seed in cell) for seed in seeds)
    means = [mean(cell.values()) for cell in cells]
    clusters = dict.fromkeys(seeds, 0.0)
    for cell, center in zip(cells, means, strict=True):
        for seed, value in cell.items():
            clusters[seed] += (value - center) / (len(cells) * math.sqrt(len(cell) * (len(cell) - 1)))
    return Paired(by_seed, pooled=(mean(means), math.sqrt(sum(value**2 for value in clusters.values()))))
