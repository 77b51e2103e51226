"""A task stream: what the loop and the evaluation see of a data set.

The whole data set is one uint8 tensor per split, sorted by task, on the device of the run; the data of a task
is a view of it. `StreamSpec` is everything that can be said without reading an image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch


@dataclass(frozen=True)
class Augmentation:
    """Drawn afresh for every sample: a crop out of the zero-padded image, and a horizontal flip."""

    padding: int = 0
    flip: bool = False


@dataclass(frozen=True)
class StreamSpec:
    name: str
    setting: str  # "class": every task has classes of its own; "domain": all tasks share the classes
    n_tasks: int
    n_classes: int
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation
    train_sizes: tuple[int, ...]  # per task
    test_sizes: tuple[int, ...]
    # What tells two contents of one kind of data set apart (a folder's files); part of a run's identity.
    fingerprint: str = ""

    @property
    def is_domain(self) -> bool:
        return self.setting == "domain"

    def classes_of(self, task: int) -> range:
        if self.is_domain:
            return range(self.n_classes)
        per_task = self.n_classes // self.n_tasks
        return range(task * per_task, (task + 1) * per_task)


@dataclass(frozen=True)
class Split:
    """Images and labels of one task; the labels also as a host array, so that nothing waits for a device."""

    images: torch.Tensor  # (N, C, H, W) uint8
    labels: torch.Tensor  # (N,) int64
    labels_host: np.ndarray

    def __len__(self) -> int:
        return len(self.labels_host)

    def to(self, device: torch.device) -> Split:
        return Split(self.images.to(device), self.labels.to(device), self.labels_host)

    def part(self, start: int, stop: int) -> Split:
        return Split(self.images[start:stop], self.labels[start:stop], self.labels_host[start:stop])


def split_of(images: np.ndarray, labels: np.ndarray) -> Split:
    labels = np.ascontiguousarray(labels, dtype=np.int64)
    return Split(torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels), labels)


@dataclass(frozen=True)
class Stream:
    """Training and test data in task order, with the bounds of every task."""

    spec: StreamSpec
    train_data: Split
    test_data: Split
    train_bounds: tuple[int, ...]
    test_bounds: tuple[int, ...]

    def train(self, task: int) -> Split:
        return self.train_data.part(self.train_bounds[task], self.train_bounds[task + 1])

    def test(self, task: int) -> Split:
        return self.test_data.part(self.test_bounds[task], self.test_bounds[task + 1])

    @property
    def n_train_tasks(self) -> int:
        return len(self.train_bounds) - 1

    def to(self, device: torch.device) -> Stream:
        return replace(self, train_data=self.train_data.to(device), test_data=self.test_data.to(device))

    def merged(self) -> Stream:
        """All training data as one task; the test data stay apart."""
        return replace(self, train_bounds=(0, len(self.train_data)))


def bounds(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return (0, *np.cumsum(sizes).tolist())
