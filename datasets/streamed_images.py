"""Base classes of data sets of large images, which are read from their files during training.

Every image is brought to one stored form: its shorter side is resized to 256 pixels, and the middle 256x256 is kept.
In training, the network sees a random resized crop of 224x224, flipped at random; in testing, the middle 224x224. Crops
are taken from the stored form, not from the original image, so that the stream and the buffer give the same.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from datasets.dataset import HOLD_OUT, VALIDATION, Config, RawData, Split
from datasets.image_cache import CACHE_PATH, NUM_WORKERS, FromFiles, number_of_workers
from datasets.image_files import ImageFiles, decode, read_file
from utils.data.augment import Flip, RandomResizedCrop
from utils.data.file_stream import Files, FileStream
from utils.data.stream import Part, Stream, StreamSpec, ranges

STORED, SEEN = 256, 224

STREAM_OPTIONS = (CACHE_PATH, NUM_WORKERS)
DOMAIN_STREAM_OPTIONS = (VALIDATION, HOLD_OUT, *STREAM_OPTIONS)


class StreamedImages(FromFiles):
    """A data set of image files that are not held in memory. Subclasses override `files`."""

    streamed = True
    image_shape = (3, STORED, STORED)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
    augmentation: tuple[Part, ...] = (RandomResizedCrop(SEEN, STORED), Flip())

    def read(self, config: Config) -> RawData:
        """Return the names of the files instead of images."""
        files = self.listed_files(config)
        return RawData(files.train.names, files.train.labels, files.test.names, files.test.labels)

    def _stream(self, config: Config, spec: StreamSpec, train: Split, test: Split, **fields: Any) -> Stream:
        files = self.listed_files(config)
        rows = (fields.get(name, slice(None)) for name in ("train_rows", "test_rows"))
        splits = zip((train, test), rows, strict=True)
        train_files, test_files = (Files(names[row], labels[row]) for (names, labels), row in splits)
        where = ranges(spec.train_sizes), ranges(spec.test_sizes)
        reading: dict[str, Any] = {"num_workers": number_of_workers(config), "advice": files.advice}
        reading["decode"] = partial(_decode_by_name, files, self.image_shape[1])
        return FileStream(spec, train_files, test_files, *where, config.seed, config.batch_size, **reading)


def _decode_by_name(files: ImageFiles, size: int, name: bytes) -> np.ndarray:
    path = files.path(name)
    return decode(path, read_file(path), size, resize=True)


class StreamedDomains(StreamedImages):
    """Streamed images of which every task, a domain, has its own, of all classes.

    Files are listed domain by domain, with the label domain * classes + class.
    """

    setting = "domain"

    def sizes(self, config: Config) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of training and of test images, each as an array (domains, classes)."""
        files = self.listed_files(config)
        n_classes = len(files.classes)
        n_domains = int(files.train.labels.max()) // n_classes + 1
        train, test = files.sizes(n_domains * n_classes)
        return train.reshape(-1, n_classes), test.reshape(-1, n_classes)

    def task_names(self, config: Config) -> Sequence[str]:
        return self.listed_files(config).domains

    def spec(self, config: Config) -> StreamSpec:
        train, test = self._sizes(config, *self.sizes(config))
        return self._spec(config, train.shape[1], train.sum(1), test.sum(1))

    def stream(self, config: Config, spec: StreamSpec) -> Stream:
        splits = self._read(config).splits  # --validation holds out a share of every class of every domain
        return self._stream(config, spec, *((names, labels % spec.n_classes) for names, labels in splits))
