"""Base class of data sets that are split by class, with the options that all of them have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from utils.config.options import Option, SameAs, integer, number, text
from utils.data.random import class_order, generator
from utils.data.stream import Augmentation, Split, Stream, StreamSpec, bounds, split_of
from utils.errors import UsageError

BASE_PATH = Option("base_path", text, "folder with the data", default="data", changes_numbers=False)
N_TASKS = Option("n_tasks", integer(1), "number of tasks that the classes are split into")
SPLIT_OPTIONS = (
    N_TASKS,
    Option(
        "class_order_seed",
        integer(0),
        "seed of the class order, 0 for the data set's own (default: --seed)",
        default=SameAs("seed"),
    ),
    Option(
        "validation",
        number(0, 1, exclusive=True),
        "hold out this share of every class's training data and report on it instead of the test set",
    ),
)


@dataclass(frozen=True)
class RawData:
    """Images (N, C, H, W) uint8 and original labels of both splits, as read from disk."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


class ClassDataset:
    """A data set of which every task gets its own classes. Subclasses state facts and read files."""

    name: str
    n_classes: int
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation = Augmentation()

    def class_sizes(self, config) -> tuple[np.ndarray, np.ndarray]:
        """Training and test images of every original class, without reading an image."""
        raise NotImplementedError

    def read(self, config) -> RawData:
        raise NotImplementedError

    def fingerprint(self, config) -> str:
        return ""

    def spec(self, config) -> StreamSpec:
        train, test = self.class_sizes(config)
        if config.n_tasks is None:
            raise UsageError(f"{self.name} needs --n_tasks: its {len(train)} classes are split into that many tasks")
        if len(train) % config.n_tasks:
            raise UsageError(f"--n_tasks {config.n_tasks} does not divide the {len(train)} classes of {self.name}")
        if config.validation is not None:
            test = np.array([held_out(size, config.validation) for size in train])
            train = train - test
            if min(test) < 1 or min(train) < 1:
                raise UsageError(f"--validation {config.validation} leaves a class of {self.name} without data")
        task_of = class_order(config.class_order_seed, len(train)) // (len(train) // config.n_tasks)
        return StreamSpec(
            name=self.name,
            setting="class",
            n_tasks=config.n_tasks,
            n_classes=len(train),
            image_shape=tuple(self.image_shape),
            mean=tuple(self.mean),
            std=tuple(self.std),
            augmentation=self.augmentation,
            train_sizes=tuple(np.bincount(task_of, train).astype(int).tolist()),
            test_sizes=tuple(np.bincount(task_of, test).astype(int).tolist()),
            fingerprint=self.fingerprint(config),
        )

    def stream(self, config, spec: StreamSpec) -> Stream:
        raw = self.read(config)
        if config.validation is not None:
            raw = with_validation(raw, config.validation)
        order = class_order(config.class_order_seed, spec.n_classes)
        return Stream(
            spec,
            in_task_order(raw.train_images, order[raw.train_labels], spec, spec.train_sizes),
            in_task_order(raw.test_images, order[raw.test_labels], spec, spec.test_sizes),
            bounds(spec.train_sizes),
            bounds(spec.test_sizes),
        )


def in_task_order(images: np.ndarray, labels: np.ndarray, spec: StreamSpec, sizes: tuple[int, ...]) -> Split:
    """Sorted by task, otherwise as they were, so that a task is one slice."""
    tasks = labels // (spec.n_classes // spec.n_tasks)
    found = tuple(np.bincount(tasks, minlength=spec.n_tasks).tolist())
    if found != sizes:
        raise UsageError(
            f"the files of {spec.name} hold {found} images for its tasks instead of {sizes}: incomplete data?"
        )
    order = np.argsort(tasks, kind="stable")
    return split_of(images[order], labels[order])


def held_out(size: int, share: float) -> int:
    return round(int(size) * share)


def with_validation(raw: RawData, share: float) -> RawData:
    """The held-out share of every class in place of the test data; the same samples for every seed."""
    chosen = np.zeros(len(raw.train_labels), dtype=bool)
    for label in np.unique(raw.train_labels):
        members = np.flatnonzero(raw.train_labels == label)
        chosen[generator(0, "validation", int(label)).permutation(members)[: held_out(len(members), share)]] = True
    return RawData(
        raw.train_images[~chosen], raw.train_labels[~chosen], raw.train_images[chosen], raw.train_labels[chosen]
    )
