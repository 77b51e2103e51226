"""What Split CIFAR-10 and Split CIFAR-100 have in common.

The images come from torchvision's files, downloaded and unpacked if need be, or from a tree of images
`<base_path>/CIFAR100/train/<class>/*` and `test/<class>/*`. They are checked against a digest of all images and labels,
and sorted within a class by content, so that every source gives the same run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from datasets.dataset import ClassDataset, Config, RawData
from datasets.image_files import check_counts, decode, list_images
from datasets.published import check_content, first_download, first_line
from utils.config.options import Rule
from utils.data.augment import Crop, Flip
from utils.errors import UsageError
from utils.files import write_atomically
from utils.packages import import_or_usage_error

TRAIN_IMAGES, TEST_IMAGES = 50_000, 10_000
DECODED = "decoded.npz"  # cache of a tree's images: reading 60,000 files takes longer than a short run
LAMBDA_OF_DERPP = (  # chosen on held-out training images of both data sets: docs/defaults.md
    Rule({"lambd": 0.1}, when={"model": "derpp"}),
    Rule({"lambd": 0.001}, when={"model": "derpp", "penalty_norm": "sum"}),
)


class Cifar(ClassDataset):
    """Base class of both: subclasses state their facts."""

    image_shape = (3, 32, 32)
    augmentation = (Crop(padding=4), Flip())
    torchvision_name: str
    class_names: str  # in the order of the labels
    content: str  # digest of all images and labels

    def class_sizes(self, config: Config) -> tuple[np.ndarray, np.ndarray]:
        per_class = TRAIN_IMAGES // self.n_classes, TEST_IMAGES // self.n_classes
        return np.full(self.n_classes, per_class[0]), np.full(self.n_classes, per_class[1])

    def source(self, config: Config) -> str:
        return str(Path(config.base_path) / self.torchvision_name)

    def names(self, config: Config) -> list[str]:
        return self.class_names.split()

    def fingerprint(self, config: Config) -> str:
        return self.content

    def read(self, config: Config) -> RawData:
        root = Path(self.source(config))
        return self._read_tree(root) if (root / "train").is_dir() else self._check(self._read_torchvision(root), root)

    def _check(self, raw: RawData, source: Path) -> RawData:
        return check_content(raw, self.content, self.torchvision_name, source)

    # --- torchvision's files ---------------------------------------------------------------------------------------

    def _read_torchvision(self, root: Path) -> RawData:
        torchvision = import_or_usage_error("torchvision", f"--dataset {self.name}")
        reader = getattr(torchvision.datasets, self.torchvision_name)

        def arrays(download: bool) -> RawData:
            parts = [reader(root, train=train, download=download) for train in (True, False)]
            return RawData(*(array for part in parts for array in _arrays(part)))

        try:
            return arrays(download=False)
        except (OSError, RuntimeError):  # missing or incomplete
            pass
        try:
            with first_download(root):
                return arrays(download=True)
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"cannot read or download {self.torchvision_name}: {first_line(error)}; "
                f"put {reader.base_folder} or {reader.filename} in {root}, or images as train/<class>/* and "
                f"test/<class>/*; or point --base_path to the folder that holds {self.torchvision_name}/"
            ) from error

    # --- a tree of images --------------------------------------------------------------------------------------------

    def _read_tree(self, root: Path) -> RawData:
        decoded = root / DECODED
        try:
            with np.load(decoded, allow_pickle=False) as arrays:
                return self._check(RawData(**arrays), decoded)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, BadZipFile, UsageError) as error:
            print(f"note: {decoded} is damaged ({first_line(error)}); reading the images again", file=sys.stderr)
        raw = self._check(self._decoded_tree(root), root)
        try:
            write_atomically(decoded, lambda file: np.savez(file, **vars(raw)))
        except OSError as error:
            print(f"note: cannot write {decoded} ({error.strerror})", file=sys.stderr)
        return raw

    def _decoded_tree(self, root: Path) -> RawData:
        files, names = list_images(root), self.class_names.split()
        if files.classes != names:
            wrong = ", ".join(sorted({*files.classes} ^ {*names})[:5])
            raise UsageError(f"{root} does not have the classes of {self.torchvision_name} (missing or extra: {wrong})")
        check_counts(files, TRAIN_IMAGES // self.n_classes, TEST_IMAGES // self.n_classes)
        train, test = (
            np.stack([decode(files.path(name), 32, resize=False) for name in part.names])
            for part in (files.train, files.test)
        )
        return RawData(train, files.train.labels, test, files.test.labels)


def _arrays(data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels of one of torchvision's data sets."""
    return data.data.transpose(0, 3, 1, 2), np.asarray(data.targets, dtype=np.int64)
