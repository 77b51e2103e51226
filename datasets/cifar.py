"""What Split CIFAR-10 and Split CIFAR-100 have in common.

The images come from torchvision's files, downloaded and unpacked if need be, or from a tree of images
`<base_path>/CIFAR100/train/<class>/*` and `test/<class>/*`. Whatever the source, they are verified against a digest of
all images and labels, and ordered within a class by content: the same images give the same run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from datasets.dataset import ClassDataset, RawData
from datasets.image_files import check_counts, list_images, read_exactly
from datasets.published import first_download, first_line, verified
from utils.config.options import Rule
from utils.data.augment import Crop, Flip
from utils.errors import UsageError
from utils.files import write_atomically
from utils.packages import needed

TRAIN_IMAGES, TEST_IMAGES = 50_000, 10_000
DECODED = "decoded.npz"  # a tree's images in one file: reading 60,000 files takes longer than a short run
LAMBDA_OF_DERPP = (  # chosen on held-out training images of both: docs/defaults.md
    Rule({"lambd": 0.1}, when={"model": "derpp"}),
    Rule({"lambd": 0.001}, when={"model": "derpp", "penalty_norm": "sum"}),
)


class Cifar(ClassDataset):
    image_shape = (3, 32, 32)
    augmentation = (Crop(padding=4), Flip())
    torchvision_name: str
    class_names: str  # in the order of the labels
    content: str  # digest of all images and labels

    def class_sizes(self, config):
        return (np.full(self.n_classes, images // self.n_classes) for images in (TRAIN_IMAGES, TEST_IMAGES))

    def source(self, config) -> str:
        return str(Path(config.base_path) / self.torchvision_name)

    def names(self, config):
        return self.class_names.split()

    def fingerprint(self, config) -> str:
        return self.content

    def read(self, config) -> RawData:
        root = Path(self.source(config))
        return (
            self._read_tree(root) if (root / "train").is_dir() else self._verified(self._read_torchvision(root), root)
        )

    def _verified(self, raw: RawData, source: Path) -> RawData:
        return verified(raw, self.content, self.torchvision_name, source)

    # --- torchvision's files ---------------------------------------------------------------------------------------

    def _read_torchvision(self, root: Path) -> RawData:
        torchvision = needed("torchvision", f"--dataset {self.name}")
        reader = getattr(torchvision.datasets, self.torchvision_name)

        def arrays(download: bool) -> RawData:
            parts = [reader(root, train=train, download=download) for train in (True, False)]
            return RawData(*(array for part in parts for array in _arrays(part)))

        try:
            return arrays(download=False)
        except (OSError, RuntimeError):  # not there, or not whole
            pass
        try:
            with first_download(root):
                return arrays(download=True)
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"cannot read or download {self.torchvision_name}: {first_line(error)}. "
                f"Put {reader.base_folder} or {reader.filename} in {root}, or images as train/<class>/* and "
                f"test/<class>/*; or point --base_path to the folder that holds {self.torchvision_name}/"
            ) from error

    # --- a tree of images --------------------------------------------------------------------------------------------

    def _read_tree(self, root: Path) -> RawData:
        decoded = root / DECODED
        try:
            with np.load(decoded, allow_pickle=False) as arrays:
                return self._verified(RawData(**arrays), decoded)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, BadZipFile, UsageError) as error:
            print(f"note: {decoded} is damaged ({first_line(error)}); the images are read again", file=sys.stderr)
        raw = self._verified(self._decoded_tree(root), root)
        try:
            write_atomically(decoded, lambda file: np.savez(file, **vars(raw)))
        except OSError as error:
            print(f"note: cannot keep the decoded images in {root} ({error.strerror})", file=sys.stderr)
        return raw

    def _decoded_tree(self, root: Path) -> RawData:
        files, names = list_images(root), self.class_names.split()
        found = []
        for part, per_class in zip((files.train, files.test), self.class_sizes(None), strict=True):
            classes = [paths[0].parent.name for paths in part]
            if classes != names:
                odd = sorted({*classes} ^ {*names})
                raise UsageError(
                    f"{root} has not the {self.n_classes} classes of {self.torchvision_name}: "
                    f"{', '.join(odd[:5])} {'are' if len(odd) > 1 else 'is'} missing or too many"
                )
            check_counts(part, per_class[0])
            images = np.stack([read_exactly(path, 32) for paths in part for path in paths])
            found += [images, np.arange(self.n_classes).repeat(per_class)]
        return RawData(*found)


def _arrays(data) -> tuple[np.ndarray, np.ndarray]:
    return data.data.transpose(0, 3, 1, 2), np.asarray(data.targets, dtype=np.int64)
