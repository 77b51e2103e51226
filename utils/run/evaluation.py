"""Accuracy on test tasks, Task-IL and Class-IL from the same predictions, and which classes are taken for which."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from models.method import Method
from utils.data.stream import Stream, StreamSpec
from utils.run.statistics import EVALUATION_BATCH, at_test_time, in_test_order


def accuracies(method: Method, stream: Stream, tasks: Iterable[int]) -> dict[str, list[float]]:
    return evaluate(method, stream, tasks)[0]


@torch.no_grad()
def evaluate(method: Method, stream: Stream, tasks: Iterable[int]) -> tuple[dict[str, list[float]], torch.Tensor]:
    """Accuracy in % on each of `tasks`: `class_il` over all classes, unseen ones included, and `task_il` over those of
    the task's own classes; where tasks share their classes there is only `domain_il`. And, still on the device, how
    many test images of each class (rows) were taken for each class (columns) among all."""
    method.net.eval()
    tasks, n_classes = list(tasks), stream.spec.n_classes
    confusion = torch.zeros(n_classes, n_classes, dtype=torch.int64, device=method.augment.scale.device)
    with at_test_time(method):
        right = torch.stack([count_right(method, stream, task, confusion) for task in tasks]).tolist()  # the only wait
    sizes = [stream.spec.test_sizes[task] for task in tasks]
    percent = [[100 * row[k] / size for row, size in zip(right, sizes, strict=True)] for k in (0, 1)]
    return by_setting(stream.spec, *percent), confusion


def by_setting(spec: StreamSpec, among_all: list[float], among_own: list[float]) -> dict[str, list[float]]:
    return {"domain_il": among_all} if spec.is_domain else {"class_il": among_all, "task_il": among_own}


def guesses(scores: torch.Tensor, own: range) -> tuple[torch.Tensor, torch.Tensor]:
    """The best class among all, and among a task's own."""
    return scores.argmax(1), scores[:, own.start : own.stop].argmax(1) + own.start


def count_right(method: Method, stream: Stream, task: int, confusion: torch.Tensor) -> torch.Tensor:
    """(2,) numbers of test images that are right among all classes, and among the task's own; `confusion` counts on."""
    own, right = stream.spec.classes_of(task), 0
    for batch in in_test_order(method, stream.test(task, EVALUATION_BATCH), task):
        found = guesses(method.predict(method.augment.normalize(batch.images)), own)
        right = right + torch.stack([(guess == batch.labels).sum() for guess in found])
        pairs = batch.labels * len(confusion) + found[0]
        confusion.view(-1).index_add_(0, pairs, torch.ones_like(pairs))
    return right
