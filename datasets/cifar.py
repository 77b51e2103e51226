"""What Split CIFAR-10 and Split CIFAR-100 have in common: torchvision downloads, verifies and reads the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from datasets.dataset import ClassDataset, RawData
from utils.data.augment import Crop, Flip
from utils.errors import UsageError
from utils.packages import needed

TRAIN_IMAGES, TEST_IMAGES = 50_000, 10_000


class Cifar(ClassDataset):
    image_shape = (3, 32, 32)
    augmentation = (Crop(padding=4), Flip())
    torchvision_name: str

    def class_sizes(self, config):
        return (np.full(self.n_classes, images // self.n_classes) for images in (TRAIN_IMAGES, TEST_IMAGES))

    def read(self, config) -> RawData:
        train, test = self._open(config, train=True), self._open(config, train=False)
        return RawData(*_arrays(train), *_arrays(test))

    def _open(self, config, train: bool):
        torchvision = needed("torchvision", f"--dataset {self.name}")
        reader = getattr(torchvision.datasets, self.torchvision_name)
        root = Path(config.base_path) / self.torchvision_name
        wanted = f"{reader.base_folder} or {reader.filename} in {root}"
        try:
            return reader(root, train=train, download=True)
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"cannot read or download {self.torchvision_name}: {_first_line(error)}. "
                f"Put {wanted}, or point --base_path to the folder that holds {self.torchvision_name}/"
            ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _arrays(data) -> tuple[np.ndarray, np.ndarray]:
    return data.data.transpose(0, 3, 1, 2), np.asarray(data.targets, dtype=np.int64)
