"""What the data sets of four idx files have in common, MNIST's and Fashion-MNIST's.

The files may be in `<base_path>/MNIST/raw`, where torchvision puts them, in `<base_path>/MNIST` or in `<base_path>`,
plain or gzipped. If there are none, torchvision downloads them. They are checked, and sorted by content.
"""

import gzip
import math
import zlib
from functools import partial
from pathlib import Path

import numpy as np

from datasets.dataset import Config, Dataset, RawData
from datasets.image_files import nearby_advice
from datasets.published import check_content, download
from utils.errors import DataMissing, UsageError
from utils.packages import import_or_usage_error

SIDE = 28
CONTENT = "f258fa836c0f4502"  # digest of all images and labels
TRAIN_SIZES = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
TEST_SIZES = np.array([980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009])
FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


class Mnist(Dataset):
    """Base class of the MNIST data sets."""

    n_classes = 10
    image_shape = (1, SIDE, SIDE)
    mean, std = (0.0,), (1.0,)  # inputs are in [0, 1], as the field has them
    torchvision_name = "MNIST"

    def class_sizes(self, config: Config) -> tuple[np.ndarray, np.ndarray]:
        return TRAIN_SIZES, TEST_SIZES

    def fingerprint(self, config: Config) -> str:
        return CONTENT

    def source(self, config: Config) -> str:
        files = self._files(Path(config.base_path))
        return f"{files[0].parent}: {', '.join(path.name for path in files)}" if files else super().source(config)

    def read(self, config: Config) -> RawData:
        files, raw = self.read_files(config)
        return check_content(raw, CONTENT, "MNIST", files[0].parent)

    def read_files(self, config: Config) -> tuple[list[Path], RawData]:
        """Return the files and what they hold."""
        files = self._files(Path(config.base_path)) or self._download(Path(config.base_path))
        n_train, n_test = (int(sizes.sum()) for sizes in self.class_sizes(config))
        shapes = ((n_train, SIDE, SIDE), (n_train,), (n_test, SIDE, SIDE), (n_test,))
        images, labels, test_images, test_labels = map(read_idx, files, shapes)
        labels, test_labels = labels.astype(np.int64), test_labels.astype(np.int64)
        return files, RawData(images[:, None], labels, test_images[:, None], test_labels)

    def _files(self, base_path: Path) -> list[Path] | None:
        """Return the four files, plain or gzipped, in the first folder that has any of them; None if there are none."""
        own = base_path / self.torchvision_name
        for folder in (own / "raw", own, base_path):
            plain = map(folder.joinpath, FILES)
            files = [path if path.is_file() else path.with_name(f"{path.name}.gz") for path in plain]
            missing = [path.stem for path in files if not path.is_file()]
            if not missing:
                return files
            if len(missing) < len(FILES):
                raise DataMissing(f"{folder} lacks files of {self.torchvision_name}; add {', '.join(missing)}")
        return None

    def _download(self, base_path: Path) -> list[Path]:
        torchvision = import_or_usage_error("torchvision", f"--dataset {self.name}")
        folder, reader = base_path / self.torchvision_name / "raw", getattr(torchvision.datasets, self.torchvision_name)
        advice = nearby_advice(base_path, lambda path: any(path.glob(f"{FILES[0]}*")))
        advice = advice or f"put {', '.join(FILES)} there, plain or .gz, or set --base_path to the folder that has them"
        download(partial(reader, base_path, download=True), folder, advice)
        return [folder / name for name in FILES]


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Return the bytes of an idx file, gzipped or not. It must have this shape; nothing beyond it is read."""
    # An idx file starts with two zeros, 8 for bytes, the number of axes, and their lengths.
    header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
    size = len(header) + math.prod(shape)
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            content = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"cannot read {path}: {error}; download it again") from error
    if len(content) != size or not content.startswith(header):
        raise UsageError(f"{path} is no idx file of bytes of the shape {shape}, or not whole; download it again")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)
