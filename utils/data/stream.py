"""A task stream: what the loop, the methods and the evaluation see of a data set.

`StreamSpec` is everything that can be said without reading an image. `Stream` is the protocol: training batches by
(task, epoch, first batch), so that a run can go on anywhere. `TensorStream` is its form for data that fit into memory:
one uint8 tensor per split on the device of the run, of which the data of a task are a view. `utils.data.file_stream`
has the form for those that do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch

from utils.data.random import generator
from utils.device import to_device
from utils.step import Batch


@dataclass(frozen=True)
class StreamSpec:
    name: str
    setting: str  # "class": every task has classes of its own; "domain": all tasks share the classes
    n_tasks: int
    n_classes: int
    image_shape: tuple[int, int, int]  # as they are stored, in the buffer too
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: tuple[Any, ...]  # parts of `utils.data.augment`, in their order
    train_sizes: tuple[int, ...]  # per task
    test_sizes: tuple[int, ...]
    shared_images: bool = False  # all tasks have the same images, held once
    streamed: bool = False  # images are read when their turn comes, and not held
    # What tells two contents of one kind of data set apart (a folder's files); part of a run's identity.
    fingerprint: str = ""
    task_classes: tuple[int, ...] | None = None  # the number of every task's own classes, where they are not equal

    @property
    def is_domain(self) -> bool:
        return self.setting == "domain"

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """What the network sees of an image, which augmentation may have cut out."""
        shape = self.image_shape
        for part in self.augmentation:
            shape = part.shape_of(shape)
        return shape

    def classes_of(self, task: int) -> range:
        if self.is_domain:
            return range(self.n_classes)
        if self.task_classes is None:
            per_task = self.n_classes // self.n_tasks
            return range(task * per_task, (task + 1) * per_task)
        start = sum(self.task_classes[:task])
        return range(start, start + self.task_classes[task])

    def part(self, first: int, stop: int) -> StreamSpec:
        """Of these tasks alone. Classes of tasks before them are gone; those of tasks after them are never seen."""
        return replace(
            self,
            n_tasks=stop - first,
            n_classes=self.n_classes - (0 if self.is_domain else self.classes_of(first).start),
            train_sizes=self.train_sizes[first:stop],
            test_sizes=self.test_sizes[first:stop],
            task_classes=None if self.is_domain else tuple(len(self.classes_of(task)) for task in range(first, stop)),
        )


class Stream(Protocol):
    spec: StreamSpec
    train_sizes: Sequence[int]  # of the tasks that are trained: one if all are trained together

    def batches(self, task: int, epoch: int, first: int, joined: Batch | None = None) -> Iterator[Batch]:
        """The training batches of an epoch from number `first` on, in an order of (task, epoch) alone. `joined` are
        samples that a method adds to the task's own."""

    def in_order(self, task: int, size: int) -> Iterator[Batch]:
        """A task's training samples as they lie, `size` at a time."""

    def test(self, task: int, size: int) -> Iterator[Batch]: ...

    def part(self, first: int, stop: int) -> Stream:
        """These tasks alone, as `StreamSpec.part` has them."""

    def merged(self) -> Stream:
        """All tasks trained as one."""

    def to(self, device: torch.device) -> Stream: ...


@dataclass(frozen=True)
class Split:
    """Images and labels; the labels also as a host array, so that nothing waits for a device."""

    images: torch.Tensor  # (N, C, H, W) uint8
    labels: torch.Tensor  # (N,) int64
    labels_host: np.ndarray

    def __len__(self) -> int:
        return len(self.labels_host)

    def to(self, device: torch.device) -> Split:
        return Split(self.images.to(device), self.labels.to(device), self.labels_host)

    def part(self, start: int, stop: int) -> Split:
        return Split(self.images[start:stop], self.labels[start:stop], self.labels_host[start:stop])

    def without_classes(self, count: int) -> Split:
        """The first so many classes are gone: labels count from the one after them."""
        return Split(self.images, self.labels - count, self.labels_host - count)

    def of_task(self, task: int) -> Batch:
        return Batch(
            self.images, self.labels, torch.full_like(self.labels, task),
            self.labels_host, np.full(len(self), task),
        )  # fmt: skip


def split_of(images: np.ndarray, labels: np.ndarray) -> Split:
    labels = np.ascontiguousarray(labels, dtype=np.int64)
    return Split(torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels), labels)


def bounds(sizes: Sequence[int]) -> tuple[int, ...]:
    return (0, *np.cumsum(sizes).tolist())


def ranges(sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Of tasks that lie one after the other."""
    ends = bounds(sizes)
    return tuple(pairwise(ends))


@dataclass(frozen=True)
class TensorStream:
    """Training and test data in memory, and where in them each task lies.

    Tasks may share images: `transforms`, one for each task if given, are what tells them apart then, functions of uint8
    images such as a permutation of pixels or a rotation.
    """

    spec: StreamSpec
    train_data: Split
    test_data: Split
    train_ranges: tuple[tuple[int, int], ...]
    test_ranges: tuple[tuple[int, int], ...]
    seed: int
    batch_size: int
    transforms: tuple[Callable[[torch.Tensor], torch.Tensor], ...] | None = None
    together: bool = False  # all tasks are trained as one; tests stay apart

    @property
    def train_sizes(self) -> list[int]:
        sizes = [stop - start for start, stop in self.train_ranges]
        return [sum(sizes)] if self.together else sizes

    def to(self, device: torch.device) -> TensorStream:
        return replace(self, train_data=self.train_data.to(device), test_data=self.test_data.to(device))

    def part(self, first: int, stop: int) -> TensorStream:
        spec = self.spec.part(first, stop)
        gone = self.spec.n_classes - spec.n_classes
        return replace(
            self,
            spec=spec,
            train_data=self.train_data.without_classes(gone),
            test_data=self.test_data.without_classes(gone),
            train_ranges=self.train_ranges[first:stop],
            test_ranges=self.test_ranges[first:stop],
            transforms=None if self.transforms is None else self.transforms[first:stop],
        )

    def merged(self) -> TensorStream:
        return replace(self, together=True)

    def batches(self, task: int, epoch: int, first: int, joined: Batch | None = None) -> Iterator[Batch]:
        data, mixed = self.task_data(task), joined is not None and len(joined) > 0
        if mixed:
            data = concatenated([data, joined])
        order = generator(self.seed, "shuffle", task, epoch).permutation(len(data))
        order_on_device = to_device(order, data.labels.device)
        for start in range(first * self.batch_size, len(data), self.batch_size):
            chosen = slice(start, start + self.batch_size)
            yield picked(data, order[chosen], order_on_device[chosen], one_task=not mixed)

    def in_order(self, task: int, size: int) -> Iterator[Batch]:
        return chunks(self.task_data(task), size)

    def test(self, task: int, size: int) -> Iterator[Batch]:
        return chunks(self._piece(self.test_data, self.test_ranges, task, task), size)

    def task_data(self, task: int) -> Batch:
        """All training samples of a task: a view, unless tasks are told apart by transforms."""
        if not self.together:
            return self._piece(self.train_data, self.train_ranges, task, task)
        starts, stops = zip(*self.train_ranges, strict=True)
        if self.transforms is None and starts[1:] == stops[:-1]:
            return self.train_data.part(starts[0], stops[-1]).of_task(0)
        return concatenated([self._piece(self.train_data, self.train_ranges, t, 0) for t in range(self.spec.n_tasks)])

    def _piece(self, data: Split, where: tuple[tuple[int, int], ...], task: int, trained_as: int) -> Batch:
        batch = data.part(*where[task]).of_task(trained_as)
        return batch if self.transforms is None else replace(batch, images=self.transforms[task](batch.images))


def picked(data: Batch, index: np.ndarray, index_on_device: torch.Tensor, *, one_task: bool = False) -> Batch:
    """Samples by their index; those of one task need no look at which."""
    images, labels = (tensor.index_select(0, index_on_device) for tensor in (data.images, data.labels))
    count = len(index)
    tasks = data.tasks[:count] if one_task else data.tasks.index_select(0, index_on_device)
    tasks_host = data.tasks_host[:count] if one_task else data.tasks_host[index]
    return Batch(images, labels, tasks, data.labels_host[index], tasks_host)


def chunks(data: Batch, size: int) -> Iterator[Batch]:
    for start in range(0, len(data), size):
        part = slice(start, start + size)
        yield Batch(
            data.images[part], data.labels[part], data.tasks[part], data.labels_host[part], data.tasks_host[part]
        )


def concatenated(batches: Sequence[Batch]) -> Batch:
    return Batch(
        torch.cat([batch.images for batch in batches]),
        torch.cat([batch.labels for batch in batches]),
        torch.cat([batch.tasks for batch in batches]),
        np.concatenate([batch.labels_host for batch in batches]),
        np.concatenate([batch.tasks_host for batch in batches]),
    )
