"""Base classes of data sets that fit into memory, with the options that all of them have.

Subclasses state facts and read files. `ClassDataset` gives every task its own classes; `DomainDataset` gives every task
all of them and tells tasks apart by what it does to the images.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from utils.config.options import Option, SameAs, integer, number, path, text
from utils.data.augment import Part
from utils.data.random import class_order, generator
from utils.data.stream import StreamSpec, TensorStream, ranges, split_of
from utils.errors import UsageError


def class_counts(words: str) -> tuple[int, ...]:
    """Option type: whole numbers separated by commas."""
    try:
        return tuple(integer(1)(word) for word in words.split(","))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"must be numbers of classes such as 50,10,10; got {words[:80]!r}") from None


def class_list(words: str) -> tuple[str, ...]:
    """Option type: a file with a class a line, or what it says, separated by commas: so it stands in a record."""
    if os.path.isfile(words):
        try:
            lines = [line.strip() for line in Path(words).read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise argparse.ArgumentTypeError(f"cannot read {words}: {error}") from None
    elif "," in words:
        lines = text(words).split(",")
    else:
        raise argparse.ArgumentTypeError(f"must be a file with a class a line; there is no file {words[:80]!r}")
    if odd := [line for line in lines if "," in line]:
        raise argparse.ArgumentTypeError(
            f"{words[:80]}: {odd[0][:80]!r} has a comma; give such classes by their indices"
        )
    return tuple(lines)


class_counts.metavar, class_list.metavar = "N,...", "FILE"

BASE_PATH = Option("base_path", path, "folder with the data", default="data", changes_numbers=False)
N_TASKS = Option("n_tasks", integer(1), "number of tasks; the classes are split into them, or all tasks share them")
VALIDATION = Option(
    "validation",
    number(0, 1, exclusive=True),
    "hold out this share of every class's training data and report on it instead of the test set",
)
DOMAIN_OPTIONS = (N_TASKS, VALIDATION)
SPLIT_OPTIONS = (
    N_TASKS,
    Option(
        "class_order_seed",
        integer(0),
        "seed of the class order, 0 for the data set's own (default: --seed)",
        default=SameAs("seed"),
    ),
    Option(
        "class_order",
        class_list,
        "file with all classes, a name or an index a line, in the order in which they come; instead of a seed",
        neutral=None,
    ),
    Option(
        "task_classes",
        class_counts,
        "number of classes of every task, such as 50,10,10; instead of an equal split into --n_tasks",
        neutral=None,
    ),
    VALIDATION,
)


@dataclass(frozen=True)
class RawData:
    """Images (N, C, H, W) uint8, or the names of their files, and original labels of both splits, as read from disk."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def by_content(raw: RawData) -> RawData:
    """The images of every class in an order of their own, whatever the order of the source was."""
    parts = []
    for images, labels in ((raw.train_images, raw.train_labels), (raw.test_images, raw.test_labels)):
        images = np.ascontiguousarray(images)
        digests = np.array([hashlib.sha256(image).digest() for image in images], dtype="V32")
        order = np.lexsort((*digests.view(">u8").reshape(-1, 4).T, labels))
        parts += [images[order], labels[order]]
    return RawData(*parts)


def content_digest(raw: RawData) -> str:
    """Of all images and labels, in their order."""
    digest = hashlib.sha256()
    for array in (raw.train_images, raw.train_labels, raw.test_images, raw.test_labels):
        digest.update(f"{array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()[:16]


class Dataset:
    """What both kinds have in common."""

    name: str
    n_classes: int
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: tuple[Part, ...] = ()
    setting: str
    known_fingerprint: str | None = None  # where the data are not at hand
    _kept: RawData | None = None  # read for the fingerprint, and not a second time for the stream

    def class_sizes(self, config) -> tuple[np.ndarray, np.ndarray]:
        """Training and test images of every original class, without reading an image."""
        raise NotImplementedError

    def read(self, config) -> RawData:
        raise NotImplementedError

    def source(self, config) -> str:
        """Where the images come from, for people."""
        return str(config.values().get("base_path", "its own code"))

    def stream_labels(self, config, n_classes: int) -> np.ndarray:
        """The label in the stream of every original class."""
        return np.arange(n_classes)

    def names(self, config) -> Sequence[str]:
        """Of the original classes: their indices, where they have no others."""
        train, _ = self.class_sizes(config)
        return [str(index) for index in range(len(train))]

    def fingerprint(self, config) -> str:
        """Tells this content from any other; part of a run's identity. Reads all of it, unless a subclass knows better
        without."""
        self._kept = self.read(config)
        return content_digest(self._kept)

    def _class_sizes(self, config) -> tuple[np.ndarray, np.ndarray]:
        train, test = self.class_sizes(config)
        if config.n_tasks is None:
            raise UsageError(f"{self.name} needs --n_tasks: the number of tasks of its {len(train)} classes")
        if config.validation is not None:
            test = np.array([held_out(size, config.validation) for size in train])
            train = train - test
            if min(test) < 1 or min(train) < 1:
                raise UsageError(f"--validation {config.validation} leaves a class of {self.name} without data")
        return train, test

    def _spec(self, config, n_classes: int, train_sizes: np.ndarray, test_sizes: np.ndarray) -> StreamSpec:
        return StreamSpec(
            name=self.name,
            setting=self.setting,
            n_tasks=len(train_sizes),
            n_classes=n_classes,
            image_shape=tuple(self.image_shape),
            mean=tuple(self.mean),
            std=tuple(self.std),
            augmentation=self.augmentation,
            train_sizes=tuple(train_sizes.astype(int).tolist()),
            test_sizes=tuple(test_sizes.astype(int).tolist()),
            shared_images=self.setting == "domain",
            fingerprint=self.known_fingerprint or self.fingerprint(config),
        )

    def _read(self, config) -> RawData:
        raw, self._kept = self._kept or self.read(config), None
        return raw if config.validation is None else with_validation(raw, config.validation)


class ClassDataset(Dataset):
    """A data set of which every task gets its own classes."""

    setting = "class"

    def spec(self, config) -> StreamSpec:
        train, test = self._class_sizes(config)
        task_of = task_of_labels(self._classes_per_task(config, len(train)))[self.stream_labels(config, len(train))]
        spec = self._spec(config, len(train), np.bincount(task_of, train), np.bincount(task_of, test))
        return replace(spec, task_classes=config.task_classes)

    def _classes_per_task(self, config, n_classes: int) -> Sequence[int]:
        if config.task_classes is None:
            if n_classes % config.n_tasks:
                raise UsageError(f"--n_tasks {config.n_tasks} does not divide the {n_classes} classes of {self.name}")
            return (n_classes // config.n_tasks,) * config.n_tasks
        if sum(config.task_classes) != n_classes:
            raise UsageError(
                f"--task_classes are {sum(config.task_classes)} classes in all, and {self.name} has {n_classes}"
            )
        return config.task_classes

    def stream_labels(self, config, n_classes: int) -> np.ndarray:
        if config.class_order is None:
            return class_order(config.class_order_seed, n_classes)
        return np.argsort(listed(config.class_order, self.names(config), self.name))

    def stream(self, config, spec: StreamSpec) -> TensorStream:
        raw = self._read(config)
        label_of = self.stream_labels(config, spec.n_classes)
        return TensorStream(
            spec,
            in_task_order(raw.train_images, label_of[raw.train_labels], spec, spec.train_sizes),
            in_task_order(raw.test_images, label_of[raw.test_labels], spec, spec.test_sizes),
            ranges(spec.train_sizes),
            ranges(spec.test_sizes),
            seed=config.seed,
            batch_size=config.batch_size,
        )


class DomainDataset(Dataset):
    """A data set of which every task has all images and classes, each task's transformed in its own way."""

    setting = "domain"

    def transform(self, task: int, config) -> Callable[[torch.Tensor], torch.Tensor]:
        """What a task does to its (N, C, H, W) uint8 images, shape and type kept. Draws come from a `generator`."""
        raise NotImplementedError

    def spec(self, config) -> StreamSpec:
        train, test = self._class_sizes(config)
        return self._spec(config, len(train), np.full(config.n_tasks, train.sum()), np.full(config.n_tasks, test.sum()))

    def stream(self, config, spec: StreamSpec) -> TensorStream:
        raw = self._read(config)
        train, test = split_of(raw.train_images, raw.train_labels), split_of(raw.test_images, raw.test_labels)
        for found, sizes in ((train, spec.train_sizes), (test, spec.test_sizes)):
            if len(found) != sizes[0]:
                raise UsageError(f"the files of {spec.name} hold {len(found)} images instead of {sizes[0]}")
        return TensorStream(
            spec,
            train,
            test,
            ((0, len(train)),) * spec.n_tasks,
            ((0, len(test)),) * spec.n_tasks,
            seed=config.seed,
            batch_size=config.batch_size,
            transforms=tuple(self.transform(task, config) for task in range(spec.n_tasks)),
        )


def listed(words: Sequence[str], names: Sequence[str], dataset: str) -> list[int]:
    """The indices of classes that are listed, each once, by their names or by their indices."""
    by_name = {name: index for index, name in enumerate(names)}
    by_index = {str(index): index for index in range(len(names))}
    known = max(by_name, by_index, key=lambda each: sum(word in each for word in words))
    for word in words:
        if word not in known:
            raise UsageError(
                f"--class_order: {word[:80]!r} is no class of {dataset}; all are given by their names, or all by their "
                f"indices 0 to {len(names) - 1}"
            )
    if twice := [word for word, count in Counter(words).items() if count > 1]:
        raise UsageError(f"--class_order has {twice[0]!r} more than once")
    if lacking := known.keys() - {*words}:
        raise UsageError(
            f"--class_order has {len(words)} of the {len(names)} classes of {dataset}; {min(lacking)!r} is missing"
        )
    return [known[word] for word in words]


def task_of_labels(classes_per_task: Sequence[int]) -> np.ndarray:
    return np.arange(len(classes_per_task)).repeat(classes_per_task)


def in_task_order(
    images: np.ndarray, labels: np.ndarray, spec: StreamSpec, sizes: tuple[int, ...], make: Callable = split_of
) -> Any:
    """Sorted by task, otherwise as they were, so that a task is one slice; as what `make` makes of them."""
    tasks = task_of_labels([len(spec.classes_of(task)) for task in range(spec.n_tasks)])[labels]
    found = tuple(np.bincount(tasks, minlength=spec.n_tasks).tolist())
    if found != sizes:
        raise UsageError(
            f"the files of {spec.name} hold {found} images for its tasks instead of {sizes}: incomplete data?"
        )
    order = np.argsort(tasks, kind="stable")
    return make(images[order], labels[order])


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
