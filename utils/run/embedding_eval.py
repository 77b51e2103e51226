"""`--embedding_eval`: how good the final network's embedding is, independent of its classifier.

    ncm           nearest class mean of the buffer: a test image is assigned to the class whose stored samples have the
                  nearest mean embedding, all embeddings scaled to length 1; None for a method without a buffer
    linear_probe  multinomial logistic regression (scikit-learn, C = 1) on the standardized embeddings of the training
                  data of all tasks

Images are not augmented; the network is in eval mode with the statistics of `--eval_statistics`. Both are mean
accuracies over tasks in %, as FAA is. In Task-IL only the classes of the task compete. A class without a stored sample
is always wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import numpy as np
import torch
from torch.nn import functional as F

from models.icarl import class_sums
from models.method import Method
from utils.console import log
from utils.data.stream import Stream, StreamSpec
from utils.run import metrics
from utils.run.eval_statistics import buffer_batches, eval_statistics_applied, evaluation_batch_size, in_test_order
from utils.run.evaluation import by_setting, predictions
from utils.step import Batch

MAX_ITERATIONS = 1000

Embedded = tuple[torch.Tensor, torch.Tensor]  # (N, features) and (N,) labels


@torch.no_grad()
def embedding_accuracies(method: Method, stream: Stream) -> dict[str, dict[str, float | None]]:
    spec, size = stream.spec, evaluation_batch_size(method)
    method.net.eval()
    with eval_statistics_applied(method):
        tests, trained = (
            [_embed(method, in_test_order(method, read(task, size), task)) for task in range(n_tasks)]
            for read, n_tasks in ((stream.test, spec.n_tasks), (stream.in_order, len(stream.train_sizes)))
        )
        stored = _embed(method, buffer_batches(method)) if len(method.buffer or ()) else None
    probe, ncm = _accuracy(_regression_scores(trained, tests, spec), tests, spec), {}
    if stored:
        means = class_means(*stored, spec.n_classes)
        ncm = _accuracy([nearness(embedding, means) for embedding, _ in tests], tests, spec)
    return {setting: {"ncm": ncm.get(setting), "linear_probe": probe[setting]} for setting in probe}


def _embed(method: Method, batches: Iterable[Batch]) -> Embedded:
    pairs = [(method.net.output(method.augment.normalize(batch.images)).embedding, batch.labels) for batch in batches]
    return torch.cat([embedding for embedding, _ in pairs]), torch.cat([labels for _, labels in pairs])


def class_means(embedding: torch.Tensor, labels: torch.Tensor, n_classes: int) -> torch.Tensor:
    """Return means (classes, features) of embeddings of length 1; NaN for a class without samples."""
    sums, counts = class_sums(F.normalize(embedding, dim=1), labels, n_classes)
    return sums / counts.unsqueeze(1)


def nearness(embedding: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """Return scores (N, classes): minus the squared distance, without the part that all classes share."""
    scores = 2 * F.normalize(embedding, dim=1) @ means.T - means.square().sum(1)
    return scores.nan_to_num(nan=-torch.inf)


def _regression_scores(trained: list[Embedded], tests: list[Embedded], spec: StreamSpec) -> list[torch.Tensor]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    inputs, labels = (torch.cat(parts).cpu().numpy() for parts in zip(*trained, strict=True))
    regression, all_scores = LogisticRegression(C=1.0, max_iter=MAX_ITERATIONS), []
    model = make_pipeline(StandardScaler(), regression)
    with threadpool_limits(torch.get_num_threads()), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # reported below in one line
        model.fit(inputs, labels)
        for embedding, test_labels in tests:
            scores = np.full((len(embedding), spec.n_classes), -np.inf)
            scores[:, regression.classes_] = model.predict_log_proba(embedding.cpu().numpy())
            all_scores.append(torch.from_numpy(scores).to(test_labels.device))
    if regression.n_iter_.max() >= MAX_ITERATIONS:
        log.info(f"the linear probe was stopped after {MAX_ITERATIONS} iterations")
    return all_scores


def _accuracy(all_scores: list[torch.Tensor], tests: list[Embedded], spec: StreamSpec) -> dict[str, float]:
    percent: tuple[list[float], list[float]] = ([], [])
    for task, (scores, (_, labels)) in enumerate(zip(all_scores, tests, strict=True)):
        has_score = scores.gather(1, labels.unsqueeze(1)).squeeze(1) > -torch.inf
        for values, predicted in zip(percent, predictions(scores, spec.classes_of(task)), strict=True):
            values.append(100 * ((predicted == labels) & has_score).double().mean().item())
    return {setting: metrics.mean(values) for setting, values in by_setting(spec, *percent).items()}
