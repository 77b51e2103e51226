"""Accuracy on test tasks, Task-IL and Class-IL from the same forward."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from utils.data.augment import Augment
from utils.data.stream import Stream

EVALUATION_BATCH = 256


@torch.no_grad()
def accuracies(net: nn.Module, stream: Stream, tasks: Iterable[int], augment: Augment) -> dict[str, list[float]]:
    """Accuracy in % on each of `tasks`: `class_il` over all logits, unseen classes included, and `task_il` over
    those of the task's own classes. Where tasks share their classes there is only `domain_il`."""
    net.eval()
    tasks = list(tasks)
    correct = torch.stack([_correct(net, stream, task, augment) for task in tasks]).tolist()  # the only wait
    sizes = [len(stream.test(task)) for task in tasks]
    class_il, task_il = ([100 * row[k] / size for row, size in zip(correct, sizes, strict=True)] for k in (0, 1))
    if stream.spec.is_domain:
        return {"domain_il": class_il}
    return {"class_il": class_il, "task_il": task_il}


def _correct(net: nn.Module, stream: Stream, task: int, augment: Augment) -> torch.Tensor:
    """(2,) numbers of test images that are right among all classes, and among the task's own."""
    data, own = stream.test(task), stream.spec.classes_of(task)
    right = torch.zeros(2, dtype=torch.int64, device=data.labels.device)
    for start in range(0, len(data), EVALUATION_BATCH):
        part = data.part(start, start + EVALUATION_BATCH)
        logits = net(augment.normalize(part.images))
        among_own = logits[:, own.start : own.stop].argmax(1) + own.start
        right += torch.stack([(guess == part.labels).sum() for guess in (logits.argmax(1), among_own)])
    return right
