"""What Split CIFAR-10 and Split CIFAR-100 have in common.

The images come from torchvision's files, downloaded and unpacked if need be, or from a tree of images
`<base_path>/CIFAR100/train/<class>/*` and `test/<class>/*`, or both without the folder CIFAR100. They are checked
against a digest of all images and labels, and sorted within a class by content: every source gives the same run.
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from datasets.dataset import Config, RawData, by_content
from datasets.image_cache import CachedImages, Content
from datasets.image_files import ImageFiles, list_images, nearby_advice
from datasets.published import check_content, download
from utils.config.options import Rule
from utils.data.augment import Crop, Flip
from utils.packages import import_or_usage_error

LAMBDA_OF_DERPP = (  # chosen on held-out training images of both data sets: docs/defaults.md
    Rule({"lambd": 0.1}, when={"model": "derpp"}),
    Rule({"lambd": 0.001}, when={"model": "derpp", "penalty_norm": "sum"}),
)


class Cifar(CachedImages):
    """Base class of both: subclasses state their facts."""

    image_shape = (3, 32, 32)
    augmentation = (Crop(padding=4), Flip())
    torchvision_name: str
    class_names: str  # in the order of the labels
    content: str  # digest of all images and labels

    def names(self, config: Config) -> list[str]:
        return self.class_names.split()

    def fingerprint(self, config: Config) -> str:
        return self.content

    def files(self, config: Config) -> ImageFiles:
        return list_images(self._root(config))

    def source(self, config: Config) -> str:
        root = self._root(config)
        return super().source(config) if (root / "train").is_dir() else f"{root}: torchvision's files"

    def read(self, config: Config) -> RawData:
        root = self._root(config)
        raw = super().read(config) if (root / "train").is_dir() else self._read_torchvision(root)
        return check_content(raw, self.content, self.torchvision_name, root)

    def decode(self, config: Config) -> Content:
        """Decode a tree of images into the order of the run, so that the cache needs no sorting."""
        content = super().decode(config)
        return replace(content, raw=content.raw and by_content(content.raw))

    def _root(self, config: Config) -> Path:
        """Return the folder of the data set, which may be --base_path itself."""
        base_path = Path(config.base_path)
        return self._find_files(base_path) or base_path / self.torchvision_name

    def _find_files(self, base_path: Path) -> Path | None:
        first_class = self.class_names.split()[0]
        for folder in (base_path / self.torchvision_name, base_path):
            if (folder / "train" / first_class).is_dir() or any(folder.glob(f"cifar-{self.n_classes}-*")):
                return folder
        return None

    def _read_torchvision(self, root: Path) -> RawData:
        torchvision = import_or_usage_error("torchvision", f"--dataset {self.name}")
        reader = getattr(torchvision.datasets, self.torchvision_name)

        def arrays(download: bool) -> RawData:
            parts = [reader(root, train=train, download=download) for train in (True, False)]
            splits = ((part.data.transpose(0, 3, 1, 2), np.array(part.targets)) for part in parts)
            return RawData(*(array for split in splits for array in split))

        with suppress(OSError, RuntimeError):  # missing or incomplete
            return arrays(download=False)
        wanted = f"{reader.base_folder}, {reader.filename}, or images as train/<class>/* and test/<class>/*"
        advice = nearby_advice(root.parent, lambda path: self._find_files(path) is not None)
        advice = advice or f"put there {wanted}; or set --base_path to the folder that has one of these"
        return download(partial(arrays, download=True), root, advice)
