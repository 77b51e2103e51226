"""Task streams: what the training loop, the methods and the evaluation see of a data set.

`StreamSpec` holds the facts that are known without reading an image. `Stream` is the interface. `TensorStream` is for
data that fit into memory: one uint8 tensor per split on the run's device, of which a task has a range or some rows.
`utils.data.file_stream` has the stream for larger data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, Generic, Self, TypeVar

import numpy as np
import torch

from utils.data.random import generator
from utils.device import to_device
from utils.step import Batch


class Part(ABC):
    """A step of augmentation, as in `utils.data.augment`. Its draws are whole numbers, sent to the device at once."""

    rows: ClassVar[int]  # numbers that it draws for a sample

    @abstractmethod
    def draw(self, draw: np.random.Generator, count: int) -> np.ndarray:
        """Return an array (rows, count) of draws."""

    @abstractmethod
    def on_host(self, images: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """Return the augmented images (N, C, H, W)."""

    @abstractmethod
    def on_device(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """Return the augmented images, computed in a few operations for all samples."""

    def for_testing(self, images: torch.Tensor) -> torch.Tensor:
        """Return what the network sees of images in evaluation."""
        return images

    def shape_of(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the shape of an augmented image."""
        return shape


@dataclass(frozen=True)
class StreamSpec:
    """Facts about a stream, known without reading an image."""

    name: str
    setting: str  # "class": every task has its own classes; "domain": all tasks share the classes
    n_tasks: int
    n_classes: int  # of all tasks together
    image_shape: tuple[int, int, int]  # (C, H, W) as stored, in the buffer too
    mean: tuple[float, ...]  # of each channel, in [0, 1]
    std: tuple[float, ...]
    augmentation: tuple[Part, ...]  # steps of augmentation, in order
    train_sizes: tuple[int, ...]  # of each task
    test_sizes: tuple[int, ...]
    streamed: bool = False  # images are read from files during training, not held in memory
    fingerprint: str = ""  # distinguishes contents of the same kind of data set; part of a run's identity
    task_classes: tuple[int, ...] | None = None  # number of classes of each task, if they are not equal
    boundary: str = "sharp"  # `--boundary`; if it is another one, the stream is a single task with all samples

    @property
    def has_boundaries(self) -> bool:
        """Whether a method knows where one task ends and the next begins."""
        return self.boundary == "sharp"

    @property
    def is_domain(self) -> bool:
        return self.setting == "domain"

    @property
    def shared_images(self) -> bool:
        """Whether all tasks have the same images, held once."""
        return self.is_domain and not self.streamed

    @property
    def image_bytes(self) -> int:
        """Size of all images that are held in memory."""
        n_images = sum(sum(sizes[:1] if self.shared_images else sizes) for sizes in (self.train_sizes, self.test_sizes))
        return 0 if self.streamed else n_images * math.prod(self.image_shape)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of the network's input, which augmentation may crop from the stored image."""
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

    def first_tasks(self, count: int) -> StreamSpec:
        """Return the facts of the first tasks. The classes of later tasks stay, but are never seen."""
        classes = None if self.is_domain else tuple(len(self.classes_of(task)) for task in range(count))
        train, test = self.train_sizes[:count], self.test_sizes[:count]
        return replace(self, n_tasks=count, train_sizes=train, test_sizes=test, task_classes=classes)

    def without_boundaries(self, boundary: str) -> StreamSpec:
        """Return the facts of the same samples as one task."""
        train, test = (sum(self.train_sizes),), (sum(self.test_sizes),)
        return replace(self, n_tasks=1, train_sizes=train, test_sizes=test, task_classes=None, boundary=boundary)


def arrival_times(
    labels: np.ndarray, tasks: np.ndarray, boundary: str, strength: float | None, draw: np.random.Generator
) -> np.ndarray:
    """Return when every training sample arrives; task t lasts from t to t + 1.

    Args:
        labels: (N,) labels of the samples.
        tasks: (N,) their tasks in the stream with sharp boundaries.
        boundary: none: samples arrive at any time. blurry: those of some classes arrive in their task, all others at
            any time. gaussian: samples arrive in their task, plus Gaussian noise.
        strength: Share of the classes that arrive in their task only (blurry), or s for noise with the standard
            deviation of (1 - s) / s tasks (gaussian). 0 is the stream without any boundary, 1 that with sharp ones.
        draw: Random generator.
    """
    n_classes, n_tasks = labels.max() + 1, tasks.max() + 1
    anytime = n_tasks * draw.random(len(labels))
    if strength is None or boundary == "none":
        return anytime
    in_task = tasks + draw.random(len(labels))
    if boundary == "blurry":
        classes = draw.permutation(n_classes)[: round(strength * n_classes)]
        return np.where(np.isin(labels, classes), in_task, anytime)
    return in_task + (1 - strength) / max(strength, 1e-9) * draw.standard_normal(len(labels))


Samples = TypeVar("Samples")  # what a stream holds of a split: a batch, or the names of files


@dataclass(frozen=True)
class Stream(ABC, Generic[Samples]):
    """The tasks of a run: their training and test samples, batch by batch.

    Batches are addressed by (task, epoch, first batch), so that a run can be resumed anywhere. Their order depends on
    the seed, the task and the epoch alone.
    """

    spec: StreamSpec
    train_data: Samples  # of all tasks
    test_data: Samples
    train_ranges: tuple[tuple[int, int], ...]  # (start, stop) of each task; tasks that share images have the same
    test_ranges: tuple[tuple[int, int], ...]
    seed: int  # of the order of training samples
    batch_size: int
    together: bool = field(default=False, kw_only=True)  # all tasks are trained as one; tests stay separate
    order: np.ndarray | None = field(default=None, kw_only=True)  # of the first epoch; None: shuffled as the others

    @abstractmethod
    def batches(self, task: int, epoch: int, first: int, extra: Batch | None = None) -> Iterator[Batch]:
        """Yield the shuffled training batches of an epoch.

        Args:
            task: Number of the task.
            epoch: Number of the epoch within the task.
            first: Number of the first batch to yield.
            extra: Samples that a method adds to the task's own, shuffled among them.
        """

    @abstractmethod
    def in_order(self, task: int, size: int) -> Iterator[Batch]:
        """Yield a task's training samples in stored order, `size` at a time."""

    @abstractmethod
    def test(self, task: int, size: int) -> Iterator[Batch]:
        """Yield a task's test samples in stored order, `size` at a time."""

    @abstractmethod
    def to(self, device: torch.device) -> Self:
        """Return the stream with its batches on a device."""

    @property
    @abstractmethod
    def train_labels(self) -> np.ndarray:
        """Labels of all training samples, in the order of tasks."""

    @property
    def train_sizes(self) -> list[int]:
        """Number of training samples of each task; of all of them, if tasks are trained as one."""
        sizes = [stop - start for start, stop in self.train_ranges]
        return [sum(sizes)] if self.together else sizes

    def first_tasks(self, count: int) -> Self:
        """Return the stream of the first tasks, as `StreamSpec.first_tasks` describes it."""
        train, test = self.train_ranges[:count], self.test_ranges[:count]
        return replace(self, spec=self.spec.first_tasks(count), train_ranges=train, test_ranges=test)

    def as_single_task(self) -> Self:
        """Return the stream with all tasks trained as one."""
        return replace(self, together=True)

    def without_boundaries(self, boundary: str, strength: float | None) -> Self:
        """Return the stream of the same samples in the order that `arrival_times` gives them."""
        spec, tasks = self.spec.without_boundaries(boundary), np.repeat(np.arange(self.spec.n_tasks), self.train_sizes)
        draw = generator(self.seed, "boundary")
        order = np.argsort(arrival_times(self.train_labels, tasks, boundary, strength, draw), kind="stable")
        train, test = ranges(spec.train_sizes), ranges(spec.test_sizes)
        return replace(self, spec=spec, train_ranges=train, test_ranges=test, order=order)

    def classes_seen(self, n_batches: int) -> np.ndarray:
        """Return the classes in the first batches of a stream without boundaries."""
        assert self.order is not None
        return np.unique(self.train_labels[self.order[: n_batches * self.batch_size]])

    def epoch_order(self, task: int, epoch: int, size: int) -> np.ndarray:
        """Return the order of `size` training samples in an epoch of a task."""
        if self.order is not None and epoch == 0:
            return self.order
        return generator(self.seed, "shuffle", task, epoch).permutation(size)


@dataclass(frozen=True)
class TensorStream(Stream[Batch]):
    """A stream of data in memory."""

    # One function of uint8 images per task, such as a rotation: what distinguishes tasks that share their images.
    transforms: tuple[Callable[[torch.Tensor], torch.Tensor], ...] | None = None
    # Rows of the data in the order of tasks, into which the images need not be copied; None: they are in this order.
    train_rows: np.ndarray | None = field(default=None, kw_only=True)
    test_rows: np.ndarray | None = field(default=None, kw_only=True)

    @property
    def train_labels(self) -> np.ndarray:
        labels = self.train_data.labels_host
        return labels if self.train_rows is None else labels[self.train_rows]

    def to(self, device: torch.device) -> Self:
        train, test = (move_batch(data, device) for data in (self.train_data, self.test_data))
        return replace(self, train_data=train, test_data=test)

    def batches(self, task: int, epoch: int, first: int, extra: Batch | None = None) -> Iterator[Batch]:
        data, rows = self._train_task(task)
        if extra is not None and len(extra) > 0:
            data, rows = concatenated([self.task_data(task), extra]), None
        size = len(data) if rows is None else len(rows)
        order = self.epoch_order(task, epoch, size)
        order = order if rows is None else rows[order]
        order_on_device = to_device(order, data.labels.device)
        for start in range(first * self.batch_size, size, self.batch_size):
            part = slice(start, start + self.batch_size)
            yield index_batch(data, order[part], order_on_device[part])

    def in_order(self, task: int, size: int) -> Iterator[Batch]:
        data, rows = self._train_task(task)
        return chunks(data, size, rows)

    def test(self, task: int, size: int) -> Iterator[Batch]:
        data, rows = self._task(self.test_data, self.test_rows, self.test_ranges[task], task)
        return chunks(data, size, rows)

    def task_data(self, task: int) -> Batch:
        """Return all training samples of a task: a view, if they lie in the order of tasks and have no transform."""
        return next(self.in_order(task, self.train_sizes[task]))

    def _train_task(self, task: int) -> tuple[Batch, np.ndarray | None]:
        if not self.together:
            return self._task(self.train_data, self.train_rows, self.train_ranges[task], task)
        whole = self.train_ranges[0][0], self.train_ranges[-1][1]
        if self.transforms is None:
            return self._task(self.train_data, self.train_rows, whole, 0)
        parts = [self._task(self.train_data, None, where, part)[0] for part, where in enumerate(self.train_ranges)]
        return with_task(concatenated(parts), 0), None

    def _task(
        self, data: Batch, rows: np.ndarray | None, where: tuple[int, int], task: int
    ) -> tuple[Batch, np.ndarray | None]:
        """Return data and the rows of a task's samples in them; None: all, in their order."""
        data = with_task(data if rows is not None else slice_batch(data, *where), task)
        if self.transforms is not None:
            data = replace(data, images=self.transforms[task](data.images))
        return data, rows if rows is None else rows[slice(*where)]


# --- functions of batches ---------------------------------------------------------------------------------------------


def make_batch(images: np.ndarray, labels: np.ndarray, task: int = 0) -> Batch:
    """Return host arrays (N, C, H, W) uint8 and (N,) as a batch of one task."""
    labels = np.ascontiguousarray(labels, dtype=np.int64)
    pixels, labels_tensor = torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels)
    return with_task(Batch(pixels, labels_tensor, labels_tensor, labels, labels), task)


def with_task(data: Batch, task: int) -> Batch:
    """Return the batch with all its samples assigned to a task."""
    return replace(data, tasks=torch.full_like(data.labels, task), tasks_host=np.full(len(data), task))


def move_batch(data: Batch, device: torch.device) -> Batch:
    return replace(data, **{name: getattr(data, name).to(device) for name in ("images", "labels", "tasks")})


def slice_batch(data: Batch, start: int, stop: int) -> Batch:
    part = slice(start, stop)
    return Batch(data.images[part], data.labels[part], data.tasks[part], data.labels_host[part], data.tasks_host[part])


def index_batch(data: Batch, index: np.ndarray, index_on_device: torch.Tensor | None = None) -> Batch:
    """Return samples by their index, of which the device may have a copy already."""
    on_device = to_device(index, data.labels.device) if index_on_device is None else index_on_device
    images, labels, tasks = (part.index_select(0, on_device) for part in (data.images, data.labels, data.tasks))
    return Batch(images, labels, tasks, data.labels_host[index], data.tasks_host[index])


def chunks(data: Batch, size: int, rows: np.ndarray | None = None) -> Iterator[Batch]:
    """Yield all samples as views, or those in these rows, `size` at a time."""
    if rows is None:
        yield from (slice_batch(data, start, start + size) for start in range(0, len(data), size))
        return
    rows_on_device = to_device(rows, data.labels.device)
    for part in (slice(start, start + size) for start in range(0, len(rows), size)):
        yield index_batch(data, rows[part], rows_on_device[part])


def concatenated(batches: Sequence[Batch]) -> Batch:
    names = ("images", "labels", "tasks")
    images, labels, tasks = (torch.cat([getattr(batch, name) for batch in batches]) for name in names)
    labels_host = np.concatenate([batch.labels_host for batch in batches])
    return Batch(images, labels, tasks, labels_host, np.concatenate([batch.tasks_host for batch in batches]))


def ranges(sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return (start, stop) of parts of these sizes that lie one after the other."""
    return tuple(pairwise((0, *np.cumsum(sizes).tolist())))
