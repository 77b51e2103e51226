"""Comparisons of runs: sums of results with signs, paired by seed, and the interval of their mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np

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
    terms = [(sign, records_by_seed(experiment, selection)) for sign, experiment in comparison.terms]
    values = {}
    for seed in selection.seeds:
        numbers = [(sign, value_at(records.get(seed), comparison.metric)) for sign, records in terms]
        if all(number is not None for _, number in numbers):
            values[seed] = sum(sign * number for sign, number in numbers)
    return values


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
    """Differences of one cell, one per seed; or a mean over several cells, as `averaged` returns it."""

    differences: tuple[float, ...] = ()
    pooled: tuple[float, float, float] | None = None  # mean over cells, its standard error and degrees of freedom
    cell_sizes: tuple[int, ...] = ()  # of a mean over cells, the number of seeds in each

    @property
    def n(self) -> int:
        """The number of seeds; of several cells, the largest."""
        return max(self.cell_sizes, default=len(self.differences))

    @property
    def estimate(self) -> tuple[float, float, float] | None:
        """The mean, its standard error (zero without a spread) and degrees of freedom; None without differences."""
        if self.pooled or not self.differences:
            return self.pooled
        error = stdev(self.differences) / math.sqrt(self.n) if self.n > 1 else 0.0
        return mean(self.differences), error, self.n - 1

    @property
    def mean(self) -> float | None:
        return self.estimate[0] if self.estimate else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The t-interval of the mean; None without a spread."""
        if self.estimate is None or self.estimate[1] < NOISE:
            return None
        from scipy.stats import t

        center, error, df = self.estimate
        half = float(t.isf((1 - CONFIDENCE) / 2, df)) * error
        return center - half, center + half

    @property
    def p(self) -> float | None:
        """The two-sided p-value of no difference; None without a spread."""
        if self.estimate is None or self.estimate[1] < NOISE:
            return None
        from scipy.stats import t

        center, error, df = self.estimate
        return 2 * float(t.sf(abs(center) / error, df))

    def minus(self, other: Paired) -> Paired:
        """Return the difference of two independent estimates; nothing if one of them has no spread."""
        ours, theirs = self.estimate, other.estimate
        if not ours or not theirs or min(ours[1], theirs[1]) < NOISE:
            return Paired()
        variances = ours[1] ** 2, theirs[1] ** 2
        df = sum(variances) ** 2 / (variances[0] ** 2 / ours[2] + variances[1] ** 2 / theirs[2])
        return Paired(pooled=(ours[0] - theirs[0], math.sqrt(sum(variances)), df))

    def interval_text(self, digits: int) -> str:
        if self.interval is None:
            return "no interval" if self.n > 1 else "–"
        return "[{:+.{digits}f}, {:+.{digits}f}]".format(*self.interval, digits=digits)

    def text(self, digits: int) -> str:
        """Return mean, interval and number of seeds."""
        if self.mean is None:
            return "–"
        interval = f" {self.interval_text(digits)}" if self.n > 1 else ""
        return f"{self.mean:+.{digits}f}{interval}, n = {self.seeds_text}"

    @property
    def seeds_text(self) -> str:
        """The number of seeds, or the fewest and the most of a cell."""
        fewest = min(self.cell_sizes, default=self.n)
        return f"{fewest} to {self.n}" if fewest < self.n else f"{self.n}"

    @property
    def is_above(self) -> bool:
        return self.interval is not None and self.interval[0] > 0

    @property
    def is_below(self) -> bool:
        return self.interval is not None and self.interval[1] < 0


def averaged(
    cells: Sequence[dict[int, float]], blocks: Sequence[str] | None = None, weights: Sequence[float] | None = None
) -> Paired:
    """Return the mean over cells of differences by seed, with the interval of `stratified_estimate`.

    Args:
        cells: Differences by seed. Cells may have different seeds; the mean leaves out those without any.
        blocks: The block of each cell; by default all are one block.
        weights: Weights of a sum that replaces the mean, such as a contrast.
    """
    pairs = [pair for pair in zip(cells, blocks or [""] * len(cells), strict=True) if pair[0]]
    seeds = sorted({seed for cell, _ in pairs for seed in cell})
    if not seeds:
        return Paired()
    values = np.array([[cell.get(seed, math.nan) for seed in seeds] for cell, _ in pairs])
    shares = np.array(weights or [1 / len(pairs)] * len(pairs))
    center, error, df = map(float, stratified_estimate(values, np.array([block for _, block in pairs]), shares))
    return Paired(pooled=(center, error, df), cell_sizes=tuple(len(cell) for cell, _ in pairs))


def stratified_estimate(
    values: np.ndarray, blocks: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the weighted sum of the means of cells, its standard error, and Satterthwaite's degrees of freedom.

    Cells keep their own variances. Within a block, cells of a seed may be correlated: their residuals are added up seed
    by seed, which counts every covariance, and the block has the degrees of freedom of its seeds. Between blocks, the
    covariance counts where it is positive, as one more component. A cell with a single seed has the mean variance of
    the others.

    Args:
        values: Differences by cell and seed, NaN where a cell lacks a seed. Dimensions before these are repetitions.
        blocks: The block of every cell.
        weights: The weight of every cell.
    """
    exists = ~np.isnan(values)
    n = exists.sum(-1)
    df = np.maximum(n - 1, 1)
    means = np.where(exists, values, 0).sum(-1) / n
    residuals = np.where(exists, values - means[..., None], 0)
    spreads = (residuals**2).sum(-1) / df
    mean_spread = spreads.sum(-1, keepdims=True) / np.maximum((n > 1).sum(-1, keepdims=True), 1)
    borrowed = np.where(n > 1, 0, weights**2 * mean_spread)
    scaled = residuals * (weights / np.sqrt(n * df))[..., None]
    membership = np.unique(blocks)[:, None] == blocks
    by_block = membership @ scaled
    covariance = np.maximum((by_block.sum(-2) ** 2).sum(-1) - (by_block**2).sum((-2, -1)), 0)
    variances = (by_block**2).sum(-1) + borrowed @ membership.T
    df_of_blocks = df @ membership.T / membership.sum(-1)
    variance = variances.sum(-1) + covariance
    uncertainty = (variances**2 / df_of_blocks).sum(-1) + covariance**2 / df.mean(-1)
    with np.errstate(invalid="ignore"):
        return (weights * means).sum(-1), np.sqrt(variance), variance**2 / uncertainty
