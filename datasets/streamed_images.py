"""Base classes of data sets of large images, which are read from their files when their turn comes.

Every image is brought to one stored form: its shorter side resized to 256 pixels, the middle 256x256 kept. Of that the
network sees a random resized crop of 224x224 and its mirror image in training, the middle 224x224 in testing. Crops
are thus taken from the stored form and not from the original image, so that the stream and the buffer give the same.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from datasets.dataset import VALIDATION, ClassDataset, RawData, held_out, in_task_order
from datasets.image_cache import CACHE_OPTIONS, FromFiles
from datasets.image_files import Listing, decode
from utils.config.options import Option, integer
from utils.data.augment import Flip, RandomResizedCrop
from utils.data.file_stream import MOST_WORKERS, Files, FileStream, default_workers
from utils.data.stream import StreamSpec, ranges
from utils.errors import UsageError

STORED, SEEN = 256, 224

STREAM_OPTIONS = (
    *CACHE_OPTIONS,
    Option(
        "num_workers",
        integer(0, 1024),
        f"processes that decode images ahead, 0 for none (default: one for every core, up to {MOST_WORKERS}); changes "
        "no number",
        changes_numbers=False,
    ),
)
DOMAIN_STREAM_OPTIONS = (VALIDATION, *STREAM_OPTIONS)


class StreamedImages(FromFiles):
    """Subclasses list their files."""

    image_shape = (3, STORED, STORED)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
    augmentation = (RandomResizedCrop(SEEN, STORED), Flip())

    def files(self, config) -> Listing:
        raise NotImplementedError

    def read(self, config) -> RawData:
        """Names instead of images."""
        files = self.contents(config).files
        return RawData(files.train.names, files.train.labels, files.test.names, files.test.labels)

    def _spec(self, *arguments) -> StreamSpec:
        return replace(super()._spec(*arguments), shared_images=False, streamed=True)

    def _stream(self, config, spec: StreamSpec, train: Files, test: Files) -> FileStream:
        contents = self.contents(config)
        contents.keep()
        return FileStream(
            spec,
            train,
            test,
            ranges(spec.train_sizes),
            ranges(spec.test_sizes),
            seed=config.seed,
            batch_size=config.batch_size,
            decode=partial(_decode_below, contents.files.root, self.image_shape[1]),
            num_workers=default_workers() if config.num_workers is None else config.num_workers,
        )


def _decode_below(root: Path, size: int, name: bytes) -> np.ndarray:
    return decode(root / os.fsdecode(name), size, noted=False)  # a note would come in every epoch


class StreamedClasses(StreamedImages, ClassDataset):
    """Every task gets its own classes."""

    def class_sizes(self, config):
        files = self.contents(config).files
        train, test = (np.bincount(part.labels, minlength=len(files.classes)) for part in (files.train, files.test))
        return train, test

    def stream(self, config, spec: StreamSpec) -> FileStream:
        raw = self._read(config)
        label_of = self.stream_labels(config, spec.n_classes)
        train = in_task_order(raw.train_images, label_of[raw.train_labels], spec, spec.train_sizes, Files)
        test = in_task_order(raw.test_images, label_of[raw.test_labels], spec, spec.test_sizes, Files)
        return self._stream(config, spec, train, test)


class StreamedDomains(StreamedImages):
    """Every task has images of its own of all classes. Files lie domain by domain, with the number
    domain * classes + class."""

    setting = "domain"

    def n_domains(self, config) -> int:
        raise NotImplementedError

    def sizes(self, config) -> tuple[np.ndarray, np.ndarray]:
        """(domains, classes): numbers of training and of test images."""
        files = self.contents(config).files
        shape = self.n_domains(config), len(files.classes)
        train, test = (
            np.bincount(part.labels, minlength=shape[0] * shape[1]).reshape(shape) for part in (files.train, files.test)
        )
        return train, test

    def spec(self, config) -> StreamSpec:
        train, test = self.sizes(config)
        if config.validation is not None:
            test = np.array([held_out(size, config.validation) for size in train.flat]).reshape(train.shape)
            train = train - test
            if min(test.sum(1)) < 1 or min(train.sum(1)) < 1:
                raise UsageError(f"--validation {config.validation} leaves a domain of {self.name} without data")
        return self._spec(config, train.shape[1], train.sum(1), test.sum(1))

    def stream(self, config, spec: StreamSpec) -> FileStream:
        raw = self._read(config)  # which holds out a share of every class of every domain, if any
        train = Files(raw.train_images, raw.train_labels % spec.n_classes)
        test = Files(raw.test_images, raw.test_labels % spec.n_classes)
        return self._stream(config, spec, train, test)
