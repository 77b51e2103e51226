"""Base classes of data sets, with the options that all of them have.

A data set is one class that states facts and reads files. Derive it from `ClassDataset` if every task has its own
classes, or from `DomainDataset` if all tasks share images and classes, and differ by a transform of the images.

Example:
    @DATASETS.register("seq-mine", help="my images, 5 x 2 classes", options=(BASE_PATH, *SPLIT_OPTIONS),
                       rules=(Rule({"n_tasks": 5, "buffer_size": 500, "lr": 0.03}),))
    class SeqMine(ClassDataset):
        name = "seq-mine"
        image_shape = (3, 32, 32)
        mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
        augmentation = (Crop(padding=4), Flip())

        def class_sizes(self, config):
            return np.full(10, 500), np.full(10, 100)

        def read(self, config):
            folder = Path(config.base_path)
            return RawData(*(np.load(folder / f"{name}.npy") for name in ("train_x", "train_y", "test_x", "test_y")))
"""

import argparse
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace as Config  # the resolved options of a run, as attributes
from typing import Any

import numpy as np
import torch

from utils.config.options import FreeOption, Option, SameAs, added_option, integer, number
from utils.data.random import class_order, generator
from utils.data.stream import Part, Stream, StreamSpec, TensorStream, make_batch, ranges
from utils.errors import UsageError


def class_counts(words: str) -> tuple[int, ...]:
    """Option type: positive integers separated by commas."""
    try:
        return tuple(integer(1)(word) for word in words.split(","))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"must be numbers of classes such as 50,10,10 (got {words[:80]!r})") from None


def class_list(words: str) -> tuple[str, ...]:
    """Option type: a file with one class per line, or the classes separated by commas, as records hold them."""
    if not os.path.isfile(words):
        if "," not in words:
            raise argparse.ArgumentTypeError(f"must be a file with one class per line (no file {words[:80]!r})")
        return tuple(words.split(","))
    lines = tuple(line.strip() for line in Path(words).read_text(errors="replace").splitlines() if line.strip())
    if any("," in line for line in lines):
        raise argparse.ArgumentTypeError(f"{words[:80]}: a class has a comma; give such classes by their indices")
    return lines


def _check_class_order(config: dict[str, Any], explicit: dict[str, Any]) -> None:
    if config["class_order"] is not None:
        if "class_order_seed" in explicit:
            raise UsageError("--class_order and --class_order_seed contradict each other; give one")
        config["class_order_seed"] = None


def _check_task_classes(config: dict[str, Any], explicit: dict[str, Any]) -> None:
    if sizes := config["task_classes"]:
        if explicit.get("n_tasks", len(sizes)) != len(sizes):
            raise UsageError(f"--task_classes has {len(sizes)} tasks (got --n_tasks {explicit['n_tasks']}); give one")
        config["n_tasks"] = len(sizes)


def _check_hold_out(config: dict[str, Any], explicit: dict[str, Any]) -> None:
    if config["hold_out"] is not None and config["validation"] is not None:
        raise UsageError("--validation and --hold_out contradict each other; give one")


BASE_PATH = FreeOption("base_path", str, "Folder with the data.", default="data")
N_TASKS = Option("n_tasks", integer(1), "Number of tasks; the classes are split into them, or all tasks share them.")
SHARE = number(0, 1, exclusive=True)
VALIDATION = Option("validation", SHARE, "Evaluate on this share of the training data, held out.")
WITHOUT = "Train without this share of the training data, as with --validation, but evaluate on the test data."
HOLD_OUT = added_option("hold_out", SHARE, WITHOUT, check=_check_hold_out)
DOMAIN_OPTIONS = (N_TASKS, VALIDATION, HOLD_OUT)
CLASS_ORDER = "File with all classes in their order, one name or index per line; instead of a seed."
TASK_CLASSES = "Number of classes of every task, such as 50,10,10; instead of an equal split into --n_tasks."
SPLIT_OPTIONS = (
    N_TASKS,
    Option("class_order_seed", integer(0), "Seed of the class order; 0 keeps it (default: --seed).", SameAs("seed")),
    added_option("class_order", class_list, CLASS_ORDER, check=_check_class_order),
    added_option("task_classes", class_counts, TASK_CLASSES, check=_check_task_classes),
    VALIDATION,
    HOLD_OUT,
)


Split = tuple[np.ndarray, np.ndarray]  # images and labels


@dataclass(frozen=True)
class RawData:
    """Images (N, C, H, W) uint8, or the names of image files, and original labels of both splits, as read from disk."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    @property
    def splits(self) -> tuple[Split, Split]:
        return (self.train_images, self.train_labels), (self.test_images, self.test_labels)


def by_content(raw: RawData) -> RawData:
    """Return the data sorted by label and content, so that the order of the source does not matter."""
    arrays = []
    for images, labels in raw.splits:
        images = np.ascontiguousarray(images)
        digests = np.array([hashlib.sha256(image).digest() for image in images], dtype="V32")
        order = np.lexsort((*digests.view(">u8").reshape(-1, 4).T, labels))
        is_sorted = np.array_equal(order, np.arange(len(order)))
        arrays += [images, labels] if is_sorted else [images[order], labels[order]]
    return RawData(*arrays)


def content_digest(raw: RawData) -> str:
    """Return a digest of all images and labels, in their order."""
    digest = hashlib.sha256()
    for array in (array for split in raw.splits for array in split):
        digest.update(f"{array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


class Dataset:
    """What all data sets have in common.

    Attributes:
        name: Name under which the data set is registered.
        image_shape: (C, H, W) of the stored images.
        mean: Mean of each channel, in [0, 1].
        std: Standard deviation of each channel, in [0, 1].
        augmentation: Steps of `utils.data.augment` for training, in order.
        setting: "class" or "domain"; set by the base class.
        streamed: Whether images are read from files during training; set by the base class.
        given_fingerprint: Used instead of the data's own if set, so that facts can be stated without the data.
    """

    name: str
    n_classes: int
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: tuple[Part, ...] = ()
    setting: str
    streamed = False
    given_fingerprint: str | None = None
    _raw: RawData | None = None  # read for the fingerprint, until the stream is built

    def class_sizes(self, config: Config) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of training and of test images of every class, without reading an image.

        Args:
            config: The resolved options of the run.

        Returns:
            Two arrays of length (number of classes,), in the order of the original labels.
        """
        raise NotImplementedError

    def read(self, config: Config) -> RawData:
        """Read all images and labels.

        Args:
            config: The resolved options of the run; `config.base_path` is the folder with the data.

        Returns:
            uint8 images (N, C, H, W) and original labels from 0 of both splits.
        """
        raise NotImplementedError

    def spec(self, config: Config) -> StreamSpec:
        """Return the facts about the stream."""
        raise NotImplementedError

    def stream(self, config: Config, spec: StreamSpec) -> Stream:
        """Return the stream that `spec` describes."""
        raise NotImplementedError

    def stream_labels(self, config: Config, n_classes: int) -> np.ndarray:
        """Return the label in the stream of every original class."""
        return np.arange(n_classes)

    def names(self, config: Config) -> Sequence[str]:
        """Return the names of the original classes; by default, their indices."""
        train, _ = self.class_sizes(config)
        return [str(index) for index in range(len(train))]

    def task_names(self, config: Config) -> Sequence[str]:
        """Return the names of the tasks, where they have any."""
        return ()

    def source(self, config: Config) -> str:
        """Return where the data were found and in which layout, for `--check_data`."""
        return str(getattr(config, "base_path", "its own code"))

    def fingerprint(self, config: Config) -> str:
        """Return a digest of the content, which is part of a run's identity.

        The default reads all data. Override it where the digest is known without.
        """
        self._raw = self.read(config)
        return content_digest(self._raw)

    def _sizes(self, config: Config, train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return sizes after `--validation` or `--hold_out`; every row, a class or a domain, must have some left."""
        name = "hold_out" if config.validation is None else "validation"
        if (share := getattr(config, name, None)) is None:  # a plug-in may lack the option
            return train, test
        held_out = held_out_count(train, share)
        if any(sizes.reshape(len(train), -1).sum(1).min() < 1 for sizes in (held_out, train - held_out)):
            raise UsageError(f"--{name} {share} leaves a class or domain of {self.name} without data")
        return train - held_out, held_out if name == "validation" else test

    def _spec(self, config: Config, n_classes: int, train_sizes: np.ndarray, test_sizes: np.ndarray) -> StreamSpec:
        return StreamSpec(
            name=self.name,
            setting=self.setting,
            n_tasks=len(train_sizes),
            n_classes=n_classes,
            image_shape=self.image_shape,
            mean=tuple(self.mean),
            std=tuple(self.std),
            augmentation=self.augmentation,
            train_sizes=tuple(train_sizes.astype(int).tolist()),
            test_sizes=tuple(test_sizes.astype(int).tolist()),
            streamed=self.streamed,
            fingerprint=self.given_fingerprint or self.fingerprint(config),
        )

    def _read(self, config: Config) -> RawData:
        raw, self._raw = self._raw or self.read(config), None
        if config.validation is not None:
            return with_validation(raw, config.validation)
        if (share := getattr(config, "hold_out", None)) is not None:
            rest = with_validation(raw, share)
            return replace(raw, train_images=rest.train_images, train_labels=rest.train_labels)
        return raw

    def _stream(self, config: Config, spec: StreamSpec, train: Split, test: Split, **fields: Any) -> Stream:
        """Return the stream of images and labels. `train_rows` and `test_rows` are their rows in the order of tasks."""
        train_ranges, test_ranges = (
            ((0, sizes[0]),) * spec.n_tasks if spec.shared_images else ranges(sizes)
            for sizes in (spec.train_sizes, spec.test_sizes)
        )
        fields |= {"seed": config.seed, "batch_size": config.batch_size}
        return TensorStream(spec, make_batch(*train), make_batch(*test), train_ranges, test_ranges, **fields)


class ClassDataset(Dataset):
    """A data set of which every task has its own classes."""

    setting = "class"

    def spec(self, config: Config) -> StreamSpec:
        train, test = self._sizes(config, *self.class_sizes(config))
        n_classes, classes_per_task = len(train), config.task_classes
        if classes_per_task is None:
            if config.n_tasks is None or n_classes % config.n_tasks:
                advice = "take a divisor, or give the number of classes of every task with --task_classes"
                raise UsageError(f"--n_tasks {config.n_tasks} must divide {n_classes} classes of {self.name}; {advice}")
            classes_per_task = (n_classes // config.n_tasks,) * config.n_tasks
        if sum(classes_per_task) != n_classes:
            raise UsageError(f"--task_classes sum to {sum(classes_per_task)}; {self.name} has {n_classes} classes")
        task_of = np.arange(config.n_tasks).repeat(classes_per_task)[self.stream_labels(config, n_classes)]
        spec = self._spec(config, n_classes, np.bincount(task_of, train), np.bincount(task_of, test))
        return replace(spec, task_classes=config.task_classes)

    def stream_labels(self, config: Config, n_classes: int) -> np.ndarray:
        if config.class_order is None:
            return class_order(config.class_order_seed, n_classes)
        return np.argsort(class_indices(config.class_order, self.names(config), self.name))

    def stream(self, config: Config, spec: StreamSpec) -> Stream:
        label_of = self.stream_labels(config, spec.n_classes)
        train, test = ((images, label_of[labels]) for images, labels in self._read(config).splits)
        rows = {
            "train_rows": rows_by_task(train[1], spec, spec.train_sizes),
            "test_rows": rows_by_task(test[1], spec, spec.test_sizes),
        }
        return self._stream(config, spec, train, test, **rows)


class DomainDataset(Dataset):
    """A data set of which every task has all images and classes, with its own transform of the images."""

    setting = "domain"

    def transform(self, task: int, config: Config) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the transform of a task's images.

        Args:
            task: Number of the task.
            config: The resolved options of the run. Random draws come from `generator(config.seed, ..., task)`.

        Returns:
            A function of uint8 images (N, C, H, W) that keeps shape and type.
        """
        raise NotImplementedError

    def spec(self, config: Config) -> StreamSpec:
        train, test = self._sizes(config, *self.class_sizes(config))
        if config.n_tasks is None:
            raise UsageError(f"{self.name} has no default number of tasks; set --n_tasks")
        sizes = (np.full(config.n_tasks, part.sum()) for part in (train, test))
        return self._spec(config, len(train), *sizes)

    def stream(self, config: Config, spec: StreamSpec) -> Stream:
        train, test = self._read(config).splits
        for (images, _), sizes in ((train, spec.train_sizes), (test, spec.test_sizes)):
            if len(images) != sizes[0]:
                raise UsageError(f"the files of {spec.name} hold {len(images)} images instead of {sizes[0]}")
        transforms = tuple(self.transform(task, config) for task in range(spec.n_tasks))
        return self._stream(config, spec, train, test, transforms=transforms)


def class_indices(words: Sequence[str], names: Sequence[str], dataset: str) -> list[int]:
    """Return the indices of all classes in the order of `words`, which are all names or all indices."""
    by_name = {name: index for index, name in enumerate(names)}
    by_index = {str(index): index for index in range(len(names))}
    known = max(by_name, by_index, key=lambda index_of: sum(word in index_of for word in words))
    given, wanted = Counter(words), Counter([*known])
    if wrong := [*(given - wanted), *(wanted - given)]:
        advice = f"give all {len(names)} classes of {dataset} by name, or all by index from 0"
        raise UsageError(f"--class_order: {wrong[0][:80]!r} is unknown, missing or there more than once; {advice}")
    return [known[word] for word in words]


def rows_by_task(labels: np.ndarray, spec: StreamSpec, sizes: tuple[int, ...]) -> np.ndarray:
    """Return the rows of all samples sorted by task, otherwise in their order, so that a task is one slice of them."""
    tasks = np.arange(spec.n_tasks).repeat([len(spec.classes_of(task)) for task in range(spec.n_tasks)])[labels]
    counts = tuple(np.bincount(tasks, minlength=spec.n_tasks).tolist())
    if counts != sizes:
        raise UsageError(f"the files of {spec.name} hold {counts} images for its tasks instead of {sizes}; add files")
    return np.argsort(tasks, kind="stable")


def held_out_count(size: int | np.ndarray, share: float) -> np.ndarray:
    return np.rint(np.asarray(size) * share).astype(int)


def with_validation(raw: RawData, share: float) -> RawData:
    """Return the data with a share of every class's training data in place of the test data, whatever the seed."""
    images, labels = raw.train_images, raw.train_labels
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = held_out_count(len(members), share)
        chosen[generator(0, "validation", int(label)).permutation(members)[:count]] = True
    return RawData(images[~chosen], labels[~chosen], images[chosen], labels[chosen])
