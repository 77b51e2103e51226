"""Data sets of image files, and their cache.

A digest of the contents of all images is part of a run's identity. Reading every file for it takes a while, so it is
kept in a cache, a folder, together with the decoded images if they fit into memory. These are memory-mapped: a start
copies nothing, and runs on one machine share them. The name of the folder has a digest of the images' names, sizes and
modification times: if one of these changes, the images are read again, and the old folder is removed.
"""

import hashlib
import json
import mmap
import os
import shutil
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np

from datasets.dataset import BASE_PATH, SPLIT_OPTIONS, ClassDataset, Config, Dataset, RawData, content_digest
from datasets.image_files import DECODING, ImageFiles, check_counts, decode, read_file
from utils.config.options import FreeOption, integer
from utils.console import log, repeated_note
from utils.data.file_stream import DamagedImage, damage_error, map_in_workers, split_into
from utils.files import waited_lock, write_json

CACHE_PATH = FreeOption("cache_path", str, "Folder for decoded images (default: .cache in --base_path).")
NUM_WORKERS = FreeOption("num_workers", integer(0, 1024), "Processes to decode images (default: at most 4).")
CACHED_OPTIONS = (BASE_PATH, *SPLIT_OPTIONS, CACHE_PATH, NUM_WORKERS)
MOST_WORKERS = 4  # by default
PIECE = 256  # images that are decoded, copied or counted at once
ABOUT = "about.json"


@dataclass(frozen=True)
class Content:
    """What a cache holds."""

    fingerprint: str
    classes: Sequence[str]
    raw: RawData | None = None  # None if the images are streamed
    statistics: Any = None  # mean and standard deviation of every channel, if the data set needs them


class FromFiles(Dataset):
    """A data set of image files. Subclasses override `files`."""

    resize = False  # whether images of another size are resized, or refused
    images_per_class: tuple[int, int] | None = None  # for training and for testing, if all classes have the same
    fingerprint_of_pixels = False  # instead of the files, so that it does not depend on their layout
    needs_statistics = False  # whether the cache holds mean and standard deviation of the training images
    _listed: ImageFiles | None = None
    _content: Content | None = None

    def files(self, config: Config) -> ImageFiles:
        """Return the image files of the data set, given the resolved options of the run."""
        raise NotImplementedError

    def listed_files(self, config: Config) -> ImageFiles:
        if self._listed is None:
            self._listed = self.files(config)
            if self.images_per_class:
                self._listed = replace(self._listed, advice="replace {} by a good copy")
                if self._listed.classes:
                    check_counts(self._listed, self.n_classes, *self.images_per_class)
        return self._listed

    def class_sizes(self, config: Config) -> tuple[np.ndarray, np.ndarray]:
        if self.images_per_class is None:
            return self.listed_files(config).sizes()
        train, test = self.images_per_class
        return np.full(self.n_classes, train), np.full(self.n_classes, test)

    def names(self, config: Config) -> Sequence[str]:
        return self.listed_files(config).classes

    def source(self, config: Config) -> str:
        files = self.listed_files(config)
        return f"{files.root}: {files.layout}"

    def fingerprint(self, config: Config) -> str:
        return self.cached_content(config).fingerprint

    def cached_content(self, config: Config) -> Content:
        """Return the content of the cache, which is written if need be; a dry run writes nothing."""
        if self._content is None:
            cached = load(self.cache_folder(config))
            self._content = cached or (self.decode(config) if config.dry_run else self._decode_and_cache(config))
        return self._content

    def cache_folder(self, config: Config) -> Path:
        name = f"{self.name}-{self.listed_files(config).stat_digest}-{self._kind}-v{DECODING}"
        return Path(config.cache_path or Path(config.base_path, ".cache")) / name

    @property
    def _kind(self) -> str:
        return "digest" if self.streamed else f"{self.image_shape[1]}px"

    def _decode_and_cache(self, config: Config) -> Content:
        """Return the content of the cache, written if need be. Runs that start together decode once."""
        folder, content, files = self.cache_folder(config), None, self.listed_files(config)
        about = {"root": str(files.root.resolve()), "selection": files.selection}
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with waited_lock(folder.parent / f"{self.name}.lock", f"that reads the images of {self.name}"):
                content = load(folder)
                if content is None:
                    content = self.decode(config)
                    self._remove_stale(folder, about)
                    save(folder, content, about)
                    content = load(folder)
        except OSError as error:
            advice = "so every run reads all images; set --cache_path to a writable folder"
            log.info(f"cannot write the image cache {folder} ({error.strerror}), {advice}")
        return content or self.decode(config)

    def _remove_stale(self, folder: Path, about: dict[str, Any]) -> None:
        """Remove caches of the same files as they were before, and what killed processes left. Needs the lock."""
        digest = "[0-9a-f]" * 16
        for path in folder.parent.glob(f".{self.name}-{digest}-*.tmp"):
            shutil.rmtree(path, ignore_errors=True)
        for path in folder.parent.glob(f"{self.name}-{digest}-{self._kind}-v*"):
            with suppress(OSError, ValueError, AttributeError):
                if path == folder or about.items() <= json.loads((path / ABOUT).read_bytes()).items():
                    shutil.rmtree(path, ignore_errors=True)

    def decode(self, config: Config) -> Content:
        """Read every file once, for its digest and, if they are held in memory, its pixels."""
        from tqdm import tqdm

        files = self.listed_files(config)
        keys = [*files.digest_keys()]
        is_decoded = not self.streamed and (self.fingerprint_of_pixels or not config.dry_run)
        images = shared_array((len(keys), *self.image_shape)) if is_decoded else None

        def read_piece(piece: np.ndarray) -> tuple[list[str], list[str]]:
            """Return the digests of files and a list of damaged ones. All processes share the pixels."""
            digests, damaged = [], []
            for index in piece:
                path, content = files.path(keys[index][1]), b""
                try:
                    content = read_file(path)
                    if images is not None:
                        images[index] = decode(path, content, images.shape[2], resize=self.resize)
                except DamagedImage as error:  # raised in a worker, it would get a traceback of many lines
                    damaged.append(str(error))
                digests.append(hashlib.sha256(content).hexdigest())
            return digests, damaged

        pieces = split_into(np.arange(len(keys)), PIECE)
        digest, damaged, done = hashlib.sha256(), list[str](), 0
        # A bar in a terminal, otherwise a note every minute.
        title, is_silent = f"reading the images of {self.name}", config.non_verbose
        bar = tqdm(total=len(keys), desc=title, unit="img", disable=True if is_silent else None)
        needs_notes = bar.disable and not is_silent
        note = repeated_note(lambda: f"{title}: {done} of {len(keys)}") if needs_notes else nullcontext()
        with closing(map_in_workers(read_piece, pieces, number_of_workers(config))) as results, bar, note:
            for piece, (digests, messages) in zip(pieces, results, strict=True):
                damaged += messages
                for index, content in zip(piece, digests, strict=True):
                    digest.update(keys[index][0] + f" {content}\n".encode())
                done += len(piece)
                bar.update(len(piece))
        if damaged:
            raise damage_error(damaged, files.advice)
        content = Content(f"{digest.hexdigest()[:16]}-v{DECODING}", files.classes)
        if images is None:
            return content
        count = len(files.train.names)
        raw = RawData(images[:count], files.train.labels, images[count:], files.test.labels)
        if self.fingerprint_of_pixels:
            content = replace(content, fingerprint=content_digest(raw))
        statistics = channel_statistics(raw.train_images) if self.needs_statistics else None
        return replace(content, raw=raw, statistics=statistics)


class CachedImages(FromFiles, ClassDataset):
    """A data set of image files that are decoded once and held in memory."""

    def read(self, config: Config) -> RawData:
        return cast("RawData", self.cached_content(config).raw)


def number_of_workers(config: Config) -> int:
    return min(MOST_WORKERS, os.cpu_count() or 1) if config.num_workers is None else config.num_workers


def shared_array(shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of bytes that this process shares with its forks. Pages take memory when they are written."""
    return np.frombuffer(mmap.mmap(-1, prod(shape)), np.uint8).reshape(shape)


def load(folder: Path) -> Content | None:
    """Return the content of a cache; None if it is missing or damaged."""
    try:
        about = json.loads((folder / ABOUT).read_bytes())
        content = Content(about["fingerprint"], about["classes"], statistics=about["statistics"])
        if not about["has_images"]:
            return content
        # Copied on write: what a run might do to the images does not reach the files.
        arrays = (np.load(folder / f"{field.name}.npy", mmap_mode="c") for field in fields(RawData))
        return replace(content, raw=RawData(*arrays))
    except Exception:  # a damaged file can raise almost anything
        return None


def save(folder: Path, content: Content, about: dict[str, Any]) -> None:
    """Write a cache under a temporary name and rename it when it is whole."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    about = about | {"fingerprint": content.fingerprint, "classes": [*content.classes]}
    about |= {"statistics": content.statistics, "has_images": content.raw is not None}
    try:
        temporary.mkdir()
        for name, array in vars(content.raw).items() if content.raw else ():
            with open(temporary / f"{name}.npy", "wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())
        write_json(temporary / ABOUT, about)
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def channel_statistics(images: np.ndarray) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of every channel in [0, 1], exactly, from counts of the 256 values."""
    values, counts = np.arange(256) / 255, np.zeros((images.shape[1], 256), dtype=np.int64)
    for start in range(0, len(images), PIECE):
        for channel, pixels in enumerate(images[start : start + PIECE].swapaxes(0, 1)):
            counts[channel] += np.bincount(pixels.ravel(), minlength=256)
    shares = counts / counts.sum(1, keepdims=True)
    mean = shares @ values
    return mean.tolist(), np.sqrt(shares @ values**2 - mean**2).clip(min=1e-6).tolist()
