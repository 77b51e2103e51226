"""Metrics of an accuracy matrix: a[i][j] is the accuracy (%) on task j after training task i, None if not measured.

`untrained[j]` is the accuracy of the network before any training; None where classes that were not trained have no
score. A run with one row (joint training) has no forgetting and no transfer: those are None.
"""

from __future__ import annotations

Matrix = list[list[float | None]]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def final_average_accuracy(a: Matrix) -> float:
    return mean(a[-1])


def cumulative_average_accuracy(a: Matrix) -> float:
    """Mean over i of the mean accuracy on the tasks trained up to i."""
    if len(a) == 1:
        return mean(a[0])
    return mean([mean(row[: i + 1]) for i, row in enumerate(a)])


def forgetting(a: Matrix) -> float | None:
    """Mean over j < T of the best accuracy before the last task minus the final one."""
    last = len(a) - 1
    if last == 0:
        return None
    return mean([max(a[i][j] for i in range(j, last)) - a[last][j] for j in range(last)])


def forgetting_as_published(a: Matrix) -> float | None:
    """The variant of the paper's table, never negative: its maximum also covers the last row, and the accuracy
    just before task j is trained where that was measured."""
    last = len(a) - 1
    if last == 0:
        return None
    return mean([max(row[j] for row in a if row[j] is not None) - a[last][j] for j in range(last)])


def backward_transfer(a: Matrix) -> float | None:
    last = len(a) - 1
    return mean([a[last][j] - a[j][j] for j in range(last)]) if last else None


def forward_transfer(a: Matrix, untrained: list[float] | None) -> float | None:
    last = len(a) - 1
    return mean([a[j - 1][j] - untrained[j] for j in range(1, last + 1)]) if last and untrained else None


def summary(a: Matrix, untrained: list[float] | None) -> dict[str, float | None]:
    return {
        "faa": final_average_accuracy(a),
        "caa": cumulative_average_accuracy(a),
        "forgetting": forgetting(a),
        "forgetting_as_published": forgetting_as_published(a),
        "bwt": backward_transfer(a),
        "fwt": forward_transfer(a, untrained),
    }
