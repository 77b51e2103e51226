"""Metrics of an accuracy matrix: a[i][j] is the accuracy (%) on task j after training task i.

Row i ends with the last task that was measured after task i. `points[i]` are the accuracies on the tasks up to i that
were measured while task i was trained, in their order, its end included. `untrained[j]` is the accuracy of the network
before any training; `untrained` is None where classes that were not trained have no score. A run with one row (joint
training) has no forgetting and no transfer: those are None.
"""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


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
    """Return the variant of the paper's table, which is never negative.

    Its maximum also covers the last row, and the accuracy just before task j is trained if that was measured.
    """
    last = len(a) - 1
    if last == 0:
        return None
    return mean([max(row[j] for row in a if j < len(row)) - a[last][j] for j in range(last)])


def backward_transfer(a: Matrix) -> float | None:
    last = len(a) - 1
    return mean([a[last][j] - a[j][j] for j in range(last)]) if last else None


def forward_transfer(a: Matrix, untrained: Sequence[float] | None) -> float | None:
    last = len(a) - 1
    return mean([a[j - 1][j] - untrained[j] for j in range(1, last + 1)]) if last and untrained else None


def minimum_accuracy(points: Sequence[Matrix]) -> float | None:
    """Mean over all tasks but the last of the lowest accuracy at any point after the task's end."""
    last = len(points) - 1
    lowest = [min(row[i] for later in points[i + 1 :] for row in later) for i in range(last)]
    return mean(lowest) if last else None


def worst_case_accuracy(points: Sequence[Matrix]) -> float | None:
    """Mean of the last task's accuracy at its end and the lowest accuracies of the others."""
    k, lowest = len(points), minimum_accuracy(points)
    return None if lowest is None else points[-1][-1][-1] / k + (1 - 1 / k) * lowest


def per_class(confusion: list[list[int]]) -> list[float | None]:
    """Accuracy (%) of every class from the confusion matrix (true classes are rows); None without images."""
    return [100 * row[i] / sum(row) if any(row) else None for i, row in enumerate(confusion)]


def summary(
    matrix: Sequence[Sequence[float | None]], untrained: Sequence[float] | None, points: Sequence[Matrix] | None = None
) -> dict[str, float | None]:
    """Return all metrics by name. Entries of `matrix` that were not measured may be missing or None."""
    a = [[value for value in row if value is not None] for row in matrix]
    points = points or [[row if len(a) == 1 else row[: i + 1]] for i, row in enumerate(a)]  # the ends of tasks
    return {
        "aaa": mean([mean(row) for of_task in points for row in of_task]),
        "learning_accuracy": mean([a[i][i] for i in range(len(a))]) if len(a) > 1 else None,
        "min_acc": minimum_accuracy(points),
        "wc_acc": worst_case_accuracy(points),
        "faa": mean(a[-1]),
        "caa": cumulative_average_accuracy(a),
        "forgetting": forgetting(a),
        "forgetting_as_published": forgetting_as_published(a),
        "bwt": backward_transfer(a),
        "fwt": forward_transfer(a, untrained),
    }
