"""Accuracy on test tasks, Task-IL and Class-IL from the same predictions, and which classes are taken for which."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from models.method import Method
from utils.data.random import seed_global_generators
from utils.data.stream import Stream, StreamSpec
from utils.errors import RunFailed
from utils.run.eval_statistics import eval_statistics_applied, evaluation_batch_size, in_test_order
from utils.step import Batch

Accuracies = dict[str, list[float]]  # setting -> accuracy on every task


def accuracies(method: Method, stream: Stream, tasks: Iterable[int], statistics: str | None = None) -> Accuracies:
    return evaluate(method, stream, tasks, statistics)[0]


@torch.no_grad()
def evaluate(
    method: Method, stream: Stream, tasks: Iterable[int], statistics: str | None = None
) -> tuple[Accuracies, torch.Tensor]:
    """Return the accuracies (%) on each of `tasks` by setting, and the confusion matrix on the device.

    `class_il` is among all classes, unseen ones included, `task_il` among the task's own, if it is known. Where tasks
    share their classes there is only `domain_il`. In the confusion matrix true classes are rows, predictions among all
    classes columns. `statistics` replaces `--eval_statistics`.
    """
    seed_global_generators(method.config.seed, "evaluation")
    method.net.eval()
    tasks, n_classes = list(tasks), stream.spec.n_classes
    confusion = torch.zeros(n_classes, n_classes, dtype=torch.int64, device=method.augment.scale.device)
    with eval_statistics_applied(method, statistics):
        correct = torch.stack([count_correct(method, stream, task, confusion) for task in tasks]).tolist()
    if any(n_nan for *_, n_nan in correct):
        advice = "a smaller --lr or weight of the norm's penalty may help, unless the method's `predict` is wrong"
        raise RunFailed(f"the run diverged: scores of test images are nan; {advice}")
    sizes = [stream.spec.test_sizes[task] for task in tasks]
    percent = [[100 * row[k] / size for row, size in zip(correct, sizes, strict=True)] for k in (0, 1)]
    return by_setting(stream.spec, *percent), confusion


def by_setting(spec: StreamSpec, among_all: list[float], among_own: list[float]) -> Accuracies:
    if spec.is_domain:
        return {"domain_il": among_all}
    return {"class_il": among_all} | ({"task_il": among_own} if spec.has_boundaries else {})


def predictions(scores: torch.Tensor, own: range) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best class among all, and among a task's own."""
    return scores.argmax(1), scores[:, own.start : own.stop].argmax(1) + own.start


def count_correct(method: Method, stream: Stream, task: int, confusion: torch.Tensor) -> torch.Tensor:
    """Return (3,) the correct predictions among all and among own classes, and the scores that are NaN.

    The predictions are added to `confusion`.
    """
    own, correct = stream.spec.classes_of(task), torch.zeros(3, dtype=torch.int64, device=confusion.device)
    for batch in in_test_order(method, stream.test(task, evaluation_batch_size(method)), task):
        scores = method.predict(method.augment.normalize(batch.images))
        among_all, among_own = predictions(scores, own)
        right = [(guess == batch.labels).sum() for guess in (among_all, among_own)]
        correct += torch.stack([*right, scores.isnan().sum()])
        pairs = batch.labels * len(confusion) + among_all
        confusion.view(-1).index_add_(0, pairs, torch.ones_like(pairs))
    return correct


@torch.no_grad()
def count_correct_before_training(method: Method, batch: Batch, step: int) -> torch.Tensor:
    """Return how many labels of a training batch the network predicts, with its running statistics."""
    seed_global_generators(method.config.seed, "prequential", step)
    method.net.eval()
    scores = method.predict(method.augment.normalize(batch.images))
    method.net.train()
    return (scores.argmax(1) == batch.labels).sum()
