"""Data sets of image files: which these are, and, of those that are decoded once, the images as one tensor in a cache
file, verified when it is read.

Which images a run had is part of its identity, by a digest of their contents. It is kept in the cache folder, and
computed anew when a file's name, size or time of change differs; content that changed while all three stayed, as
after a disk error or a restored time, shows only with --verify_data.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np

from datasets.dataset import ClassDataset, Dataset, RawData
from datasets.image_files import DECODING, ImageFiles, Listing, read_exactly
from utils.config.options import Option, flag, path
from utils.errors import UsageError
from utils.files import remove_temporaries, waiting_lock, write_atomically

CACHE_OPTIONS = (
    Option(
        "cache_path",
        path,
        "folder for the decoded images, or of images that are streamed for their digest (default: --base_path)",
        changes_numbers=False,
    ),
    Option(
        "verify_data",
        flag,
        "read all images again: otherwise content that changed while size and time of change stayed goes unnoticed",
        default=False,
        changes_numbers=False,
    ),
)


class FromFiles(Dataset):
    """Subclasses list their files."""

    _contents: Contents | None = None

    def files(self, config) -> ImageFiles | Listing:
        raise NotImplementedError

    def contents(self, config) -> Contents:
        if self._contents is None:
            folder = Path(config.cache_path or config.base_path)
            try:
                self._contents = self._contents_of(self.files(config), folder, verify=config.verify_data)
                _ = self._contents.digest
            except OSError as error:
                raise UsageError(f"cannot read the images: {error}; check --base_path and --cache_path") from error
        return self._contents

    def _contents_of(self, files: ImageFiles | Listing, folder: Path, *, verify: bool) -> Contents:
        return Contents(self.name, files, folder, verify=verify)

    def source(self, config) -> str:
        return str(self.contents(config).files.root)

    def names(self, config):
        return self.contents(config).files.classes

    def fingerprint(self, config) -> str:
        return self.contents(config).fingerprint


class CachedImages(FromFiles, ClassDataset):
    """Subclasses may also bring images to their size instead of asking for it."""

    statistics: tuple[tuple[float, ...], tuple[float, ...]]  # mean and std of the training images, once they are read

    def decode(self, path: Path, size: int) -> np.ndarray:
        """(3, size, size) uint8."""
        return read_exactly(path, size)

    def _contents_of(self, files, folder, *, verify):
        return ImageCache(self.name, files, folder, self.decode, verify=verify)

    def cache(self, config) -> ImageCache:
        return self.contents(config)

    def read(self, config) -> RawData:
        cache = self.cache(config)
        arrays = cache.arrays(self.image_shape[1], quiet=config.non_verbose)
        self.statistics = tuple(tuple(map(float, arrays[name])) for name in ("mean", "std"))
        train_labels, test_labels = (labels(classes) for classes in (cache.files.train, cache.files.test))
        return RawData(arrays["train_images"], train_labels, arrays["test_images"], test_labels)


class Contents:
    """What some image files hold: a digest of it.

    Reading all files for it takes a while, so it is kept under a digest of names, sizes and times of change.
    """

    def __init__(self, name: str, files: ImageFiles | Listing, folder: Path, *, verify: bool):
        self.name, self.files, self.folder, self.verify = name, files, folder, verify

    @cached_property
    def _looks(self) -> str:
        """A digest of what the files look like without being read."""
        digest = hashlib.sha256()
        for name, file in self.files.named():
            stat = file.stat()
            digest.update(name + f"\0{stat.st_size} {stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()

    @property
    def _digest_path(self) -> Path:
        return self.folder / f"{self.name}-{self._looks[:16]}.digest"

    def _digest_line(self, digest: str) -> bytes:
        """With a check, so that no other file is taken for it."""
        return f"{digest} {hashlib.sha256(f'{self._looks} {digest}'.encode()).hexdigest()}\n".encode()

    def _kept_digest(self) -> str | None:
        if not self._digest_path.is_file():
            return None
        line = self._digest_path.read_bytes()
        digest = line.partition(b" ")[0].decode(errors="replace")
        return digest if line == self._digest_line(digest) else None

    @cached_property
    def digest(self) -> str:
        kept = self._kept_digest()
        if kept and not self.verify:
            return kept
        digest = self.files.content_digest()
        if kept and kept != digest:
            print(
                f"note: images in {self.files.root} changed, though their sizes and times did not: this is another run",
                file=sys.stderr,
            )
            self._digest_path.unlink(missing_ok=True)  # also where nothing else is written: it must mislead no run
        return digest

    @property
    def fingerprint(self) -> str:
        """What tells these images, decoded by this code, from others."""
        return f"{self.digest}-v{DECODING}"

    def keep(self) -> None:
        """For the next run; if that cannot be, it reads all images again."""
        try:
            if self._kept_digest() != self.digest:
                self.folder.mkdir(parents=True, exist_ok=True)
                with waiting_lock(self.folder / f"{self.name}.lock"):
                    write_alone(self._digest_path, self._digest_line(self.digest))
        except OSError as error:
            print(
                f"note: cannot write {self._digest_path}: {error.strerror}; so every run reads all images beforehand, "
                "unless --cache_path is a folder for it",
                file=sys.stderr,
            )


class ImageCache(Contents):
    """What the cache folder holds of some image files: a digest of their contents, and the decoded images."""

    def __init__(self, name: str, files: ImageFiles, folder: Path, decode: Callable, *, verify: bool):
        super().__init__(name, files, folder, verify=verify)
        self.decode = decode

    def arrays(self, size: int, *, quiet: bool) -> dict[str, np.ndarray]:
        """The images of both parts, and mean and standard deviation; decoded if the cache does not have them."""
        path = self.folder / f"{self.name}-{self.digest}-{size}px-v{DECODING}.safetensors"
        try:
            if self._kept_digest() == self.digest and (arrays := load(path)):
                return arrays
            self.folder.mkdir(parents=True, exist_ok=True)
            with waiting_lock(self.folder / f"{self.name}.lock"):  # runs that start together decode once
                if self._kept_digest() != self.digest:
                    write_alone(self._digest_path, self._digest_line(self.digest))
                return load(path) or self._decode(path, size, quiet=quiet)
        except OSError as error:
            raise UsageError(f"cannot write the image cache {path}: {error.strerror}; set --cache_path") from error

    def _decode(self, path: Path, size: int, *, quiet: bool) -> dict[str, np.ndarray]:
        from safetensors.numpy import save

        if path.exists():
            print(f"note: the image cache {path} is damaged: the images are decoded again", file=sys.stderr)
        arrays = decode_all(self.files, self.decode, size, quiet=quiet)
        if self.files.content_digest() != self.digest:
            raise UsageError(
                f"images in {self.files.root} are not those of the kept digest, or changed just now: add --verify_data"
            )
        write_alone(path, save(arrays, metadata={"content": seal(path, arrays)}))
        return arrays


def write_alone(path: Path, content: bytes) -> None:
    """For whoever holds the folder's lock: temporary files are those of processes that were killed."""
    remove_temporaries(path)
    write_atomically(path, lambda file: file.write(content))


def seal(path: Path, arrays: dict[str, np.ndarray]) -> str:
    """A digest of all that a cache file holds, and of its name, which says what of."""
    digest = hashlib.sha256(path.name.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"\n{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()


def load(path: Path) -> dict[str, np.ndarray] | None:
    """What a cache file holds, if it is as it was written."""
    from safetensors import safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return arrays if file.metadata()["content"] == seal(path, arrays) else None
    except Exception:  # a damaged file can raise almost anything
        return None


def labels(classes: list[list[Path]]) -> np.ndarray:
    return np.arange(len(classes)).repeat([len(paths) for paths in classes])


def decode_all(files: ImageFiles, decode: Callable, size: int, *, quiet: bool) -> dict[str, np.ndarray]:
    from tqdm import tqdm

    total = sum(map(len, files.train)) + sum(map(len, files.test))
    arrays = {}
    with tqdm(total=total, desc="decoding images", unit="img", disable=True if quiet else None) as bar:
        for part, classes in (("train", files.train), ("test", files.test)):
            images = np.empty((sum(map(len, classes)), 3, size, size), dtype=np.uint8)
            for index, file in enumerate(file for of_class in classes for file in of_class):
                images[index] = decode(file, size)
                bar.update()
            arrays[f"{part}_images"] = images
    arrays["mean"], arrays["std"] = channel_statistics(arrays["train_images"])
    return arrays


def channel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of every channel in [0, 1], exactly, from counts of the 256 values."""
    values = np.arange(256) / 255
    shares = np.stack([np.bincount(channel.ravel(), minlength=256) for channel in images.swapaxes(0, 1)])
    shares = shares / shares.sum(1, keepdims=True)
    mean = shares @ values
    return mean, np.sqrt(shares @ values**2 - mean**2).clip(min=1e-6)
