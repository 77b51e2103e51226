"""What Split CIFAR-10 and Split CIFAR-100 have in common.

The images come from torchvision's files, downloaded and unpacked if need be, or from a tree of images
`<base_path>/CIFAR100/train/<class>/*` and `test/<class>/*`. Whatever the source, they are verified against a digest of
all images and labels, and ordered within a class by content: the same images give the same run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from datasets.dataset import ClassDataset, RawData, by_content, content_digest
from datasets.image_files import list_images, read_image
from utils.data.augment import Crop, Flip
from utils.errors import UsageError
from utils.files import waiting_lock, write_atomically
from utils.packages import needed

TRAIN_IMAGES, TEST_IMAGES = 50_000, 10_000
DECODED = "decoded.npz"  # a tree's images in one file: reading 60,000 files takes longer than a short run


class Cifar(ClassDataset):
    image_shape = (3, 32, 32)
    augmentation = (Crop(padding=4), Flip())
    torchvision_name: str
    class_names: str  # in the order of the labels
    content: str  # digest of all images and labels

    def class_sizes(self, config):
        return (np.full(self.n_classes, images // self.n_classes) for images in (TRAIN_IMAGES, TEST_IMAGES))

    def fingerprint(self, config) -> str:
        return self.content

    def read(self, config) -> RawData:
        root = Path(config.base_path) / self.torchvision_name
        return (
            self._read_tree(root) if (root / "train").is_dir() else self._verified(self._read_torchvision(root), root)
        )

    def _verified(self, raw: RawData, source: Path) -> RawData:
        raw = by_content(raw)
        if content_digest(raw) != self.content:
            raise UsageError(
                f"the images in {source} are not those of {self.torchvision_name}: some are missing, changed or of "
                "another class; get them anew, or use --dataset seq-folder for images of your own"
            )
        return raw

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
            with _first_download(root):
                return arrays(download=True)
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"cannot read or download {self.torchvision_name}: {_first_line(error)}. "
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
            print(f"note: {decoded} is damaged ({_first_line(error)}); the images are read again", file=sys.stderr)
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
            for paths, count in zip(part, per_class, strict=True):
                if len(paths) != count:
                    raise UsageError(f"{paths[0].parent} has {len(paths)} images instead of {count}")
            images = np.stack([_decoded(path) for paths in part for path in paths])
            found += [images, np.arange(self.n_classes).repeat(per_class)]
        return RawData(*found)


def _decoded(path: Path) -> np.ndarray:
    image = read_image(path).transpose(2, 0, 1)
    if image.shape != Cifar.image_shape:
        raise UsageError(f"{path} is an image of {image.shape[2]}x{image.shape[1]} pixels instead of 32x32")
    return image


@contextmanager
def _first_download(root: Path) -> Iterator[None]:
    """For one process at a time; a failed one leaves no empty folders behind."""
    made = [folder for folder in (root, root.parent) if not folder.exists()]
    root.mkdir(parents=True, exist_ok=True)
    lock = root / ".download.lock"
    try:
        with waiting_lock(lock):
            yield
    finally:
        lock.unlink(missing_ok=True)
        with suppress(OSError):  # not empty: the download worked, or somebody else is at it
            for folder in made:
                folder.rmdir()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _arrays(data) -> tuple[np.ndarray, np.ndarray]:
    return data.data.transpose(0, 3, 1, 2), np.asarray(data.targets, dtype=np.int64)
