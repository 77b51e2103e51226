"""Metrics of an accuracy matrix: a[i][j] is the accuracy (%) on task j after training task i."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Matrix = Sequence[Sequence[float]]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def per_class(confusion: list[list[int]]) -> list[float | None]:
    """Accuracy (%) of every class from the confusion matrix (true classes are rows); None without images."""
    return [100 * row[i] / sum(row) if any(row) else None for i, row in enumerate(confusion)]


def points_by_task(rows: Matrix, evals: Sequence[dict[str, Any]]) -> list[list[Sequence[float]]]:
    """Return what `summary` takes as `points`.

    Args:
        rows: Accuracies after every task.
        evals: The evaluations while a task was trained, with its number (`task`) and their accuracies (`accuracy`).
    """
    ends = rows if len(rows) == 1 else [row[: task + 1] for task, row in enumerate(rows)]
    return [[*(each["accuracy"] for each in evals if each["task"] == task), end] for task, end in enumerate(ends)]


def summary(
    matrix: Sequence[Sequence[float | None]], untrained: Sequence[float] | None, points: Sequence[Matrix] | None = None
) -> dict[str, float | None]:
    """Return all metrics by name. Joint training, with one row, has no forgetting and no transfer: those are None.

    Args:
        matrix: Accuracies after every task. Entries that were not measured may be missing or None.
        untrained: Accuracies before any training; None where classes that were not trained have no score.
        points: points[i] are the accuracies on the tasks up to i that were measured while task i was trained, in their
            order, its end included. Default: the ends of the tasks.
    """
    a = [[value for value in row if value is not None] for row in matrix]
    last, is_joint, final = len(a) - 1, len(a) == 1, a[-1]
    points = points or [[row if is_joint else row[: i + 1]] for i, row in enumerate(a)]
    # Of every task but the last: the lowest accuracy at any point after its end.
    lowest = [min(row[j] for later in points[j + 1 :] for row in later) for j in range(last)]
    best = [max(a[i][j] for i in range(j, last)) for j in range(last)]
    # The paper's table also counts the last row, and the accuracy just before task j if that was measured.
    best_as_published = [max(row[j] for row in a if j < len(row)) for j in range(last)]
    k = len(points)
    return {
        "aaa": mean([mean(row) for of_task in points for row in of_task]),
        "learning_accuracy": None if is_joint else mean([a[i][i] for i in range(len(a))]),
        "min_acc": None if is_joint else mean(lowest),
        "wc_acc": None if is_joint else points[-1][-1][-1] / k + (1 - 1 / k) * mean(lowest),
        "faa": mean(final),
        "caa": mean(final) if is_joint else mean([mean(row[: i + 1]) for i, row in enumerate(a)]),
        "forgetting": None if is_joint else mean([best[j] - final[j] for j in range(last)]),
        "forgetting_as_published": None if is_joint else mean([best_as_published[j] - final[j] for j in range(last)]),
        "bwt": None if is_joint else mean([final[j] - a[j][j] for j in range(last)]),
        "fwt": mean([a[j - 1][j] - untrained[j] for j in range(1, last + 1)]) if untrained and last else None,
    }
