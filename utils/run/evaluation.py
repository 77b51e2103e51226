"""Accuracy on test tasks, Task-IL and Class-IL from the same predictions."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from models.method import Method
from utils.data.stream import Stream

EVALUATION_BATCH = 256


@torch.no_grad()
def accuracies(method: Method, stream: Stream, tasks: Iterable[int]) -> dict[str, list[float]]:
    """Accuracy in % on each of `tasks`: `class_il` over all classes, unseen ones included, and `task_il` over those of
    the task's own classes. Where tasks share their classes there is only `domain_il`."""
    method.net.eval()
    tasks = list(tasks)
    correct = torch.stack([_correct(method, stream, task) for task in tasks]).tolist()  # the only wait
    sizes = [stream.spec.test_sizes[task] for task in tasks]
    class_il, task_il = ([100 * row[k] / size for row, size in zip(correct, sizes, strict=True)] for k in (0, 1))
    if stream.spec.is_domain:
        return {"domain_il": class_il}
    return {"class_il": class_il, "task_il": task_il}


def _correct(method: Method, stream: Stream, task: int) -> torch.Tensor:
    """(2,) numbers of test images that are right among all classes, and among the task's own."""
    own, right = stream.spec.classes_of(task), 0
    for batch in stream.test(task, EVALUATION_BATCH):
        scores = method.predict(method.augment.normalize(batch.images))
        among_own = scores[:, own.start : own.stop].argmax(1) + own.start
        right = right + torch.stack([(guess == batch.labels).sum() for guess in (scores.argmax(1), among_own)])
    return right
