"""`--final_probes`: how good the final network's embedding is, whatever its classifier has forgotten.

    ncm           nearest mean of the buffer: a test image belongs to the class whose stored samples' mean embedding is
                  nearest, all embeddings brought to length 1 first; None for a method without a buffer
    linear_probe  multinomial logistic regression (scikit-learn, C = 1) on the standardized embeddings of all training
                  data, of all tasks at once

Images are not augmented, the network is in eval mode with the statistics of `--eval_statistics`. Both are mean
accuracies over tasks in %, as FAA is; in Task-IL only the task's own classes compete. A class that the buffer has no
sample of is never right.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable

import numpy as np
import torch
from torch.nn import functional as F

from models.method import Method
from utils.data.stream import Stream, StreamSpec
from utils.run import metrics
from utils.run.evaluation import by_setting, guesses
from utils.run.statistics import EVALUATION_BATCH, at_test_time, buffered, in_test_order
from utils.step import Batch

MOST_ITERATIONS = 1000

Embedded = tuple[torch.Tensor, torch.Tensor]  # (N, features) and (N,) labels


@torch.no_grad()
def final_probes(method: Method, stream: Stream) -> dict[str, dict[str, float | None]]:
    """By setting and name."""
    spec = stream.spec
    method.net.eval()
    with at_test_time(method):
        tests = [
            _embedded(method, in_test_order(method, stream.test(task, EVALUATION_BATCH), task))
            for task in range(spec.n_tasks)
        ]
        trained = [
            _embedded(method, in_test_order(method, stream.in_order(task, EVALUATION_BATCH), task))
            for task in range(len(stream.train_sizes))
        ]
        stored = _embedded(method, buffered(method)) if len(method.buffer or ()) else None
    scores = {"ncm": stored and _nearest(stored, tests, spec.n_classes), "linear_probe": _fitted(trained, tests, spec)}
    found = {name: scored and _accuracy(scored, tests, spec) for name, scored in scores.items()}
    return {
        setting: {name: of_setting and of_setting[setting] for name, of_setting in found.items()}
        for setting in by_setting(spec, [], [])
    }


def _embedded(method: Method, batches: Iterable[Batch]) -> Embedded:
    pairs = [(method.net.output(method.augment.normalize(batch.images)).embedding, batch.labels) for batch in batches]
    return tuple(torch.cat(parts) for parts in zip(*pairs, strict=True))


def _nearest(stored: Embedded, tests: list[Embedded], n_classes: int) -> list[torch.Tensor]:
    means = class_means(*stored, n_classes)
    return [nearness(embedding, means) for embedding, _ in tests]


def class_means(embedding: torch.Tensor, labels: torch.Tensor, n_classes: int) -> torch.Tensor:
    """(classes, features) of embeddings of length 1; NaN for a class without any."""
    is_of = F.one_hot(labels, n_classes).to(embedding.dtype)
    return is_of.T @ F.normalize(embedding, dim=1) / is_of.sum(0).unsqueeze(1)


def nearness(embedding: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """(N, classes): the larger, the nearer. Minus the squared distance, without the part that all classes share."""
    scores = 2 * F.normalize(embedding, dim=1) @ means.T - means.square().sum(1)
    return scores.nan_to_num(nan=-torch.inf)


def _fitted(trained: list[Embedded], tests: list[Embedded], spec: StreamSpec) -> list[torch.Tensor]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits

    inputs, labels = (torch.cat(parts).cpu().numpy() for parts in zip(*trained, strict=True))
    regression = LogisticRegression(C=1.0, max_iter=MOST_ITERATIONS)
    model, scored = make_pipeline(StandardScaler(), regression), []
    with threadpool_limits(torch.get_num_threads()), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # said below, in one line
        model.fit(inputs, labels)
        for embedding, test_labels in tests:
            scores = np.full((len(embedding), spec.n_classes), -np.inf)
            scores[:, regression.classes_] = model.predict_log_proba(embedding.cpu().numpy())
            scored.append(torch.from_numpy(scores).to(test_labels.device))
    if regression.n_iter_.max() >= MOST_ITERATIONS:
        print(f"note: the linear probe was stopped after {MOST_ITERATIONS} iterations", file=sys.stderr)
    return scored


def _accuracy(scored: list[torch.Tensor], tests: list[Embedded], spec: StreamSpec) -> dict[str, float]:
    percent: list[list[float]] = [[], []]
    for task, (scores, (_, labels)) in enumerate(zip(scored, tests, strict=True)):
        has_score = scores.gather(1, labels.unsqueeze(1)).squeeze(1) > -torch.inf
        for values, guess in zip(percent, guesses(scores, spec.classes_of(task)), strict=True):
            values.append(100 * ((guess == labels) & has_score).double().mean().item())
    return {setting: metrics.mean(values) for setting, values in by_setting(spec, *percent).items()}
