"""Outcomes that a run measures on request, beside its accuracies. They change no other number of its record.

--final_statistics    the final network, evaluated with other normalization statistics than its own:
    running    the running statistics that training has left: the record's own result
    buffer     one pass over the buffer
    balanced   one pass over the buffer, in which all tasks have the same weight
    train      one pass over 5,000 images drawn from the training data of all tasks
    test       one pass over up to 5,000 test images of all tasks; older records lack it
    last_task  one pass over up to 5,000 images drawn from the training data of the last task
--late_evaluations N  mean and standard deviation of FAA over the last N evaluations of the last task, one every 50
                      steps, the end of the run included
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import fmean, stdev
from typing import Any

from models.method import Method
from utils.data.random import generator
from utils.data.stream import Stream, chunks, concatenated, slice_batch
from utils.run.eval_statistics import buffer_batches, has_statistics, shuffled_batches, statistics_of, statistics_option
from utils.run.evaluation import Accuracies, accuracies
from utils.step import Batch

LATE_EVERY = 50  # steps between two late evaluations
DRAWN_IMAGES = 5000


def final_statistics(method: Method, stream: Stream, results: Accuracies) -> dict[str, dict[str, list[float] | None]]:
    """Return the accuracies of the final network by setting and kind of statistics; None where there are none.

    `results` are the accuracies after the last task by the run's own evaluation.
    """
    kinds: dict[str, Accuracies | None] = dict.fromkeys(("running", "buffer", "balanced", "train", "test", "last_task"))
    tasks, trained = range(stream.spec.n_tasks), range(len(stream.train_sizes))
    method.net.eval()
    if has_statistics(method.net):
        is_own = statistics_option(method) == "running"
        kinds["running"] = results if is_own else accuracies(method, stream, tasks, "running")
        parts = {"train": trained} | ({"last_task": trained[-1:]} if stream.spec.has_boundaries else {})
        passes = {kind: drawn_images(method, stream, part) for kind, part in parts.items()}
        passes["test"] = spaced_test_images(method, stream)
        if method.buffer is not None and len(method.buffer):
            passes["buffer"] = buffer_batches(method)
            if stream.spec.has_boundaries:
                passes["balanced"] = buffer_batches(method)
        for kind, batches in passes.items():
            with statistics_of(method, batches, balanced=kind == "balanced"):
                kinds[kind] = accuracies(method, stream, tasks, "running")
    return {setting: {kind: each[setting] if each else None for kind, each in kinds.items()} for setting in results}


def drawn_images(method: Method, stream: Stream, tasks: Sequence[int]) -> Iterator[Batch]:
    """Yield training images of these tasks in batches: each task's share of 5,000, all in one drawn order."""
    total, parts = sum(stream.train_sizes[task] for task in tasks), []
    for task in tasks:
        size = stream.train_sizes[task]
        count = min(size, round(DRAWN_IMAGES * size / total))
        n_batches = -(-count // method.config.batch_size)
        epoch = 0 if stream.spec.has_boundaries else 1  # of a stream without boundaries, the first is not shuffled
        data = concatenated(list(islice(stream.batches(task, epoch, 0), n_batches)))
        parts.append(next(chunks(data, count)))
    yield from shuffled_batches(concatenated(parts), generator(method.config.seed, "final_statistics"))


def spaced_test_images(method: Method, stream: Stream) -> Iterator[Batch]:
    """Yield every k-th test image of all tasks, all in one drawn order; data sets are sorted by class."""
    sizes = stream.spec.test_sizes
    spacing = -(-sum(sizes) // DRAWN_IMAGES)
    images = [slice_batch(batch, 0, 1) for task in range(len(sizes)) for batch in stream.test(task, spacing)]
    yield from shuffled_batches(concatenated(images), generator(method.config.seed, "final_statistics"))


def is_late(remaining_steps: int, late_evaluations: int) -> bool:
    """Return whether the network is evaluated this many steps before the end of the last task."""
    return remaining_steps > 0 and remaining_steps % LATE_EVERY == 0 and remaining_steps < LATE_EVERY * late_evaluations


def late_summary(values: Sequence[float]) -> dict[str, Any]:
    """Return the record's entry for the accuracies of the late evaluations, the last one at the end of the run."""
    spread = stdev(values) if len(values) > 1 else None
    return {"count": len(values), "mean": fmean(values), "std": spread, "values": list(values)}
