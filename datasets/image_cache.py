"""Data sets of image files, and their cache file.

A digest of the contents of all images is part of a run's identity. Reading every file for it takes a while, so it is
kept in a cache file, together with the decoded images if they fit into memory. The name of the cache file has a digest
of the images' names, sizes and modification times: if one of these changes, the images are read again.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from filelock import FileLock

from datasets.dataset import BASE_PATH, SPLIT_OPTIONS, ClassDataset, Config, Dataset, RawData
from datasets.image_files import DECODING, ImageFiles, decode, read_file
from utils.config.options import Option
from utils.errors import UsageError
from utils.files import remove_temporaries, write_atomically

CACHE_PATH = Option(
    "cache_path",
    str,
    "folder for the cache of decoded images, or of their digest if they are streamed (default: --base_path)",
    changes_numbers=False,
)
CACHED_OPTIONS = (BASE_PATH, *SPLIT_OPTIONS, CACHE_PATH)
Content = tuple[str, dict[str, np.ndarray]]  # digest of the image files, and the decoded images


class FromFiles(Dataset):
    """A data set of image files. Subclasses override `files`."""

    holds_images = False  # whether the cache holds the decoded images, or only their digest
    resize = False  # whether images of another size are resized, or refused
    _cache: ImageCache | None = None

    def files(self, config: Config) -> ImageFiles:
        """Return the image files of the data set.

        Args:
            config: The resolved options of the run.
        """
        raise NotImplementedError

    def cache(self, config: Config) -> ImageCache:
        if self._cache is None:
            folder, size = Path(config.cache_path or config.base_path), self.image_shape[1] if self.holds_images else 0
            try:
                self._cache = ImageCache(folder, self.name, self.files(config), size, self.resize, config)
            except OSError as error:
                raise UsageError(f"cannot read the images: {error}; check --base_path") from error
        return self._cache

    def listed_files(self, config: Config) -> ImageFiles:
        return self.cache(config).files

    def class_sizes(self, config: Config) -> tuple[np.ndarray, np.ndarray]:
        return self.listed_files(config).sizes()

    def source(self, config: Config) -> str:
        return str(self.listed_files(config).root)

    def names(self, config: Config) -> Sequence[str]:
        return self.listed_files(config).classes

    def fingerprint(self, config: Config) -> str:
        return f"{self.cache(config).digest}-v{DECODING}"


class CachedImages(FromFiles, ClassDataset):
    """A data set of image files that are decoded once and held in memory."""

    holds_images = True
    statistics: tuple[tuple[float, ...], tuple[float, ...]]  # mean and std of the training images, set by `read`

    def read(self, config: Config) -> RawData:
        arrays, files = self.cache(config).pop_arrays(), self.listed_files(config)
        self.statistics = tuple(arrays["mean"].tolist()), tuple(arrays["std"].tolist())
        return RawData(arrays["train_images"], files.train.labels, arrays["test_images"], files.test.labels)


class ImageCache:
    """The cache file of some image files: a digest of their contents and, unless `size` is 0, the decoded images."""

    def __init__(self, folder: Path, name: str, files: ImageFiles, size: int, resize: bool, config: Config):
        self.files, self.size, self.resize = files, size, resize
        self.quiet, self.read_only = config.non_verbose, config.dry_run
        kind = f"{size}px" if size else "digest"
        self.path = folder / f"{name}-{files.stat_digest()}-{kind}-v{DECODING}.safetensors"
        self.lock = folder / f"{name}.lock"
        self._arrays: dict[str, np.ndarray] = {}  # since they were decoded for the digest

    @cached_property
    def digest(self) -> str:
        """Digest of the names and contents of all image files."""
        content = load(self.path, header_only=True)
        if content is None and self.read_only:
            return self._decode(0)[0]  # a dry run needs no pixels
        digest, self._arrays = content or self._load_or_decode()
        return digest

    def pop_arrays(self) -> dict[str, np.ndarray]:
        """Return the images of both splits with mean and standard deviation; the cache keeps no reference to them."""
        arrays, self._arrays = self._arrays, {}
        if not arrays:
            digest, arrays = load(self.path) or self._load_or_decode()
            if digest != self.digest:
                raise UsageError(f"the images in {self.files.root} changed while they were read; start again")
        return arrays

    def _load_or_decode(self) -> Content:
        """Return the content of the cache file, written if need be. Runs that start together decode once."""
        content = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.lock):
                content = load(self.path)
                if content is None:
                    if self.path.exists():
                        print(f"note: the image cache {self.path} is damaged; reading the images", file=sys.stderr)
                    content = self._decode(self.size)
                    self._write(*content)
        except OSError as error:
            print(
                f"note: cannot write the image cache {self.path} ({error.strerror}), so every run reads all images; "
                "set --cache_path to a writable folder",
                file=sys.stderr,
            )
        return content or self._decode(self.size)

    def _write(self, digest: str, arrays: dict[str, np.ndarray]) -> None:
        from safetensors.numpy import save

        metadata = {"content": digest, "seal": seal(self.path, digest, arrays)}
        remove_temporaries(self.path)  # of killed processes: this one holds the lock
        write_atomically(self.path, lambda file: file.write(save(arrays, metadata=metadata)))

    def _decode(self, size: int) -> Content:
        """Read every file once, for its digest and, unless `size` is 0, its pixels."""
        from tqdm import tqdm

        digest, arrays = hashlib.sha256(), {}
        total = len(self.files.train.names) + len(self.files.test.names)
        with tqdm(total=total, desc="reading images", unit="img", disable=True if self.quiet else None) as bar:
            for part, files in (("train", self.files.train), ("test", self.files.test)):
                images = np.empty((len(files.names), 3, size, size), dtype=np.uint8)
                for index, (key, path) in enumerate(self.files.digest_keys(part)):
                    content = read_file(path)
                    digest.update(key + f" {hashlib.sha256(content).hexdigest()}\n".encode())
                    if size:
                        images[index] = decode(path, content, size, resize=self.resize)
                    bar.update()
                arrays[f"{part}_images"] = images
        if not size:
            return digest.hexdigest()[:16], {}
        arrays["mean"], arrays["std"] = channel_statistics(arrays["train_images"])
        return digest.hexdigest()[:16], arrays


def seal(path: Path, digest: str, arrays: dict[str, np.ndarray]) -> str:
    """Return a digest of all that a cache file holds, and of its name, which says for which files."""
    total = hashlib.sha256(f"{path.name} {digest}".encode())
    for name, array in sorted(arrays.items()):
        total.update(f"\n{name} {array.dtype} {array.shape}\n".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def load(path: Path, *, header_only: bool = False) -> Content | None:
    """Return the content of a cache file, without arrays if `header_only`; None if it is missing or damaged."""
    from safetensors import safe_open

    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata()
            if header_only:
                return metadata["content"], {}
            content = metadata["content"], {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return content if seal(path, *content) == metadata["seal"] else None
    except Exception:  # a damaged file can raise almost anything
        return None


def channel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of every channel in [0, 1], exactly, from counts of the 256 values."""
    values = np.arange(256) / 255
    shares = np.stack([np.bincount(channel.ravel(), minlength=256) for channel in images.swapaxes(0, 1)])
    shares = shares / shares.sum(1, keepdims=True)
    mean = shares @ values
    return mean, np.sqrt(shares @ values**2 - mean**2).clip(min=1e-6)
