"""Metrics: functions of what a finished run measured, of which plug-ins may register more.

All are computed for every run and written to its record. One of a plug-in that fails has no value there, and is
computed again when the record is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from utils.config.registry import METRICS
from utils.console import log

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Measured:
    """What a finished run measured in one setting: accuracies in percent.

    Attributes:
        matrix: matrix[i][j] is the accuracy on task j after task i; a row ends with the last task that was evaluated.
            Joint training has one row.
        points: points[i] are the accuracies on the tasks up to i that were measured while task i was trained
            (`--eval_every`), in their order, its end included.
        untrained: Accuracies before any training; None where classes that were not trained have no score, or with one
            row.
        confusion: Test images by class (rows) and predicted class (columns), at the end; None in Task-IL.
    """

    matrix: Matrix
    points: Sequence[Matrix]
    untrained: Sequence[float] | None = None
    confusion: Sequence[Sequence[int]] | None = None

    @property
    def is_joint(self) -> bool:
        """Whether there is one row only: no forgetting, and no transfer."""
        return len(self.matrix) == 1

    @property
    def final(self) -> Sequence[float]:
        """The accuracies at the end."""
        return self.matrix[-1]

    @cached_property
    def lowest(self) -> list[float]:
        """The lowest accuracy on every task but the last at any point after the end of that task."""
        past = range(len(self.matrix) - 1)
        return [min(row[j] for later in self.points[j + 1 :] for row in later) for j in past]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# --- the metrics, in the order of records -----------------------------------------------------------------------------


@METRICS.register("aaa", help="average anytime accuracy (AAA)")
def average_anytime_accuracy(run: Measured) -> float:
    return mean([mean(row) for of_task in run.points for row in of_task])


@METRICS.register("learning_accuracy", help="learning accuracy")
def learning_accuracy(run: Measured) -> float | None:
    return None if run.is_joint else mean([row[i] for i, row in enumerate(run.matrix)])


@METRICS.register("min_acc", help="average minimum accuracy (min-ACC)")
def average_minimum_accuracy(run: Measured) -> float | None:
    return None if run.is_joint else mean(run.lowest)


@METRICS.register("wc_acc", help="worst-case accuracy (WC-ACC)")
def worst_case_accuracy(run: Measured) -> float | None:
    k = len(run.points)
    return None if run.is_joint else run.points[-1][-1][-1] / k + (1 - 1 / k) * mean(run.lowest)


@METRICS.register("faa", help="final average accuracy (FAA)")
def final_average_accuracy(run: Measured) -> float:
    return mean(run.final)


@METRICS.register("caa", help="average over the run (CAA)")
def cumulative_average_accuracy(run: Measured) -> float:
    return mean(run.final) if run.is_joint else mean([mean(row[: i + 1]) for i, row in enumerate(run.matrix)])


@METRICS.register("forgetting", help="forgetting", smaller_is_better=True)
def forgetting(run: Measured) -> float | None:
    best = [max(row[j] for row in run.matrix[j:-1]) for j in range(len(run.matrix) - 1)]
    return None if run.is_joint else mean([best[j] - run.final[j] for j in range(len(best))])


@METRICS.register("forgetting_as_published", help="forgetting, as in the paper's table", smaller_is_better=True)
def forgetting_as_published(run: Measured) -> float | None:
    """The paper's table also counts the last row, and the accuracy just before task j if that was measured."""
    best = [max(row[j] for row in run.matrix if j < len(row)) for j in range(len(run.matrix) - 1)]
    return None if run.is_joint else mean([best[j] - run.final[j] for j in range(len(best))])


@METRICS.register("bwt", help="backward transfer (BWT)")
def backward_transfer(run: Measured) -> float | None:
    return None if run.is_joint else mean([run.final[j] - row[j] for j, row in enumerate(run.matrix[:-1])])


@METRICS.register("fwt", help="forward transfer (FWT)")
def forward_transfer(run: Measured) -> float | None:
    if run.untrained is None:
        return None
    return mean([row[j] - run.untrained[j] for j, row in enumerate(run.matrix[:-1], start=1)])


# --- all of them ------------------------------------------------------------------------------------------------------


def per_class(confusion: list[list[int]]) -> list[float | None]:
    """Accuracy (%) of every class from the confusion matrix (true classes are rows); None without images."""
    return [100 * row[i] / sum(row) if any(row) else None for i, row in enumerate(confusion)]


def measured(
    matrix: Sequence[Sequence[float | None]],
    untrained: Sequence[float] | None,
    evals: Sequence[dict[str, Any]] = (),
    confusion: Sequence[Sequence[int]] | None = None,
) -> Measured:
    """Return what metrics are computed from. Entries of the matrix that were not measured may be missing or None.

    `evals` are the evaluations while tasks were trained, each with its `task` and `accuracy`.
    """
    rows = [[value for value in row if value is not None] for row in matrix]
    ends = rows if len(rows) == 1 else [row[: task + 1] for task, row in enumerate(rows)]
    points = [[*(each["accuracy"] for each in evals if each["task"] == task), end] for task, end in enumerate(ends)]
    return Measured(rows, points, untrained if len(rows) > 1 else None, confusion)


def built_in(run: Measured) -> dict[str, float | None]:
    return {entry.name: entry.build(run) for entry in METRICS.entries().values() if entry.module == __name__}


def of_plugins(run: Measured) -> dict[str, float | None]:
    """Return the metrics of plug-ins. One that fails is None, with a warning: the run must not be lost."""
    values: dict[str, float | None] = {}
    for entry in (entry for entry in METRICS.entries().values() if entry.module != __name__):
        try:
            value = entry.build(run)
            values[entry.name] = None if value is None else float(value)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"it is {value}")
        except Exception as error:
            values[entry.name] = None
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            _warn_once(f"metric {entry.name} has no value ({reason}); repair the plug-in, and read the record again")
    return values


_warn_once = cache(log.warning)


def summary(run: Measured) -> dict[str, float | None]:
    """Return all metrics by name. Joint training, with one row, has no forgetting and no transfer: those are None."""
    return built_in(run) | of_plugins(run)
