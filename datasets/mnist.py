"""What the MNIST data sets have in common: the four idx files, read and verified.

They may lie in `<base_path>/MNIST/raw`, where torchvision puts them, in `<base_path>/MNIST` or in `<base_path>`, plain
or gzipped; torchvision downloads them if none is there. They are verified, and ordered within a class by content.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from datasets.dataset import Dataset, RawData
from datasets.published import first_download, first_line, verified
from utils.errors import DataMissing, UsageError
from utils.packages import needed

SIDE = 28
CONTENT = "f258fa836c0f4502"  # digest of all images and labels
TRAIN_SIZES = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
TEST_SIZES = np.array([980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009])
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
UINT8 = 0x08  # the only type of numbers that these files have


class Mnist(Dataset):
    n_classes = 10
    image_shape = (1, SIDE, SIDE)
    mean, std = (0.0,), (1.0,)  # inputs are in [0, 1], as the field has them

    def class_sizes(self, config):
        return TRAIN_SIZES, TEST_SIZES

    def source(self, config) -> str:
        files = _files(Path(config.base_path))
        return str(files[0].parent if files else config.base_path)

    def fingerprint(self, config) -> str:
        return CONTENT

    def read(self, config) -> RawData:
        files = _files(Path(config.base_path)) or self._download(Path(config.base_path))
        arrays = []
        for images, labels, sizes in ((*files[:2], TRAIN_SIZES), (*files[2:], TEST_SIZES)):
            count = int(sizes.sum())
            arrays += [read_idx(images, (count, SIDE, SIDE))[:, None], _labels(labels, count)]
        return verified(RawData(*arrays), CONTENT, "MNIST", files[0].parent)

    def _download(self, base_path: Path) -> list[Path]:
        torchvision = needed("torchvision", f"--dataset {self.name}")
        folder = base_path / "MNIST" / "raw"
        try:
            with first_download(folder):
                torchvision.datasets.MNIST(base_path, download=True)
        except (OSError, RuntimeError) as error:
            raise DataMissing(
                f"no MNIST in {base_path}, and it cannot be downloaded: {first_line(error)}. Put {', '.join(FILES)} "
                f"(or these with .gz) into {base_path / 'MNIST'}, or point --base_path to the folder that has them"
            ) from error
        return [folder / name for name in FILES]


def _files(base_path: Path) -> list[Path] | None:
    """The four of the first place that has any; None if there is none anywhere."""
    for folder in (base_path / "MNIST" / "raw", base_path / "MNIST", base_path):
        found = [_plain_or_gzipped(folder / name) for name in FILES]
        if all(found):
            return found
        if any(found):
            lacking = ", ".join(name for name, path in zip(FILES, found, strict=True) if path is None)
            raise DataMissing(f"{folder} has some files of MNIST, but not {lacking}: put it there, with or without .gz")
    return None


def _plain_or_gzipped(path: Path) -> Path | None:
    return next((each for each in (path, path.with_name(f"{path.name}.gz")) if each.is_file()), None)


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The bytes of an idx file, gzipped or not, which must have this shape: no more is read than that takes."""
    header = bytes([0, 0, UINT8, len(shape)]) + np.array(shape, ">u4").tobytes()
    wanted = math.prod(shape)
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            found, content = file.read(len(header)), file.read(wanted + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"cannot read {path}: {first_line(error)}; get it anew") from error
    if found[:4] != header[:4]:
        raise UsageError(
            f"{path} is no idx file of bytes in {len(shape)} dimensions: it starts with {found[:4].hex() or 'nothing'} "
            f"instead of {header[:4].hex()}"
        )
    if found != header:
        claimed = np.frombuffer(found[4:], ">u4").tolist() if len(found) == len(header) else "half a shape"
        raise UsageError(f"{path} is of shape {claimed} instead of {[*shape]}")
    if len(content) != wanted:
        much = "is cut off" if len(content) < wanted else "goes on"
        raise UsageError(f"{path} {much} after {min(len(content), wanted)} of {wanted} bytes; get it anew")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _labels(path: Path, count: int) -> np.ndarray:
    labels = read_idx(path, (count,)).astype(np.int64)
    if labels.max() >= Mnist.n_classes:
        raise UsageError(f"{path} has the label {labels.max()}: digits are 0 to {Mnist.n_classes - 1}; get it anew")
    return labels
