"""Data sets of image files, and their cache file.

A digest of the contents of all images is part of a run's identity. Reading every file for it takes a while, so it is
kept in a cache file, together with the decoded images if they fit into memory. The name of the cache file has a digest
of the images' names, sizes and modification times: if one of these changes, the images are read again.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from filelock import FileLock

from datasets.dataset import BASE_PATH, SPLIT_OPTIONS, ClassDataset, Config, Dataset, RawData
from datasets.image_files import DECODING, ImageFiles, check_counts, decode, read_file
from utils.config.options import Option
from utils.console import log
from utils.files import remove_temporaries, write_atomically

CACHE_PATH = Option("cache_path", str, "Folder for decoded images (default: --base_path).", changes_numbers=False)
CACHED_OPTIONS = (BASE_PATH, *SPLIT_OPTIONS, CACHE_PATH)
Content = tuple[str, dict[str, np.ndarray]]  # digest of the image files, and the decoded images


class FromFiles(Dataset):
    """A data set of image files. Subclasses override `files`."""

    resize = False  # whether images of another size are resized, or refused
    images_per_class: tuple[int, int] | None = None  # for training and for testing, if all classes have the same
    _listed: ImageFiles | None = None
    _arrays: dict[str, np.ndarray] | None = None  # decoded for the fingerprint, until they are read

    def files(self, config: Config) -> ImageFiles:
        """Return the image files of the data set, given the resolved options of the run."""
        raise NotImplementedError

    def listed_files(self, config: Config) -> ImageFiles:
        if self._listed is None:
            self._listed = self.files(config)
            if self.images_per_class:
                check_counts(self._listed, self.n_classes, *self.images_per_class)
        return self._listed

    def class_sizes(self, config: Config) -> tuple[np.ndarray, np.ndarray]:
        if self.images_per_class is None:
            return self.listed_files(config).sizes()
        train, test = self.images_per_class
        return np.full(self.n_classes, train), np.full(self.n_classes, test)

    def names(self, config: Config) -> Sequence[str]:
        return self.listed_files(config).classes

    def fingerprint(self, config: Config) -> str:
        digest, _ = load(self.cache_file(config), header_only=True) or (None, {})
        if digest is None:
            digest, self._arrays = self._decode(config) if config.dry_run else self._load_or_decode(config)
        return f"{digest}-v{DECODING}"

    def cache_file(self, config: Config) -> Path:
        kind = "digest" if self.streamed else f"{self.image_shape[1]}px"
        name = f"{self.name}-{self.listed_files(config).stat_digest}-{kind}-v{DECODING}.safetensors"
        return Path(config.cache_path or config.base_path) / name

    def _load_or_decode(self, config: Config) -> Content:
        """Return the content of the cache file, written if need be. Runs that start together decode once."""
        from safetensors.numpy import save

        path, content = self.cache_file(config), None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.parent / f"{self.name}.lock"):
                content = load(path)
                if content is None:
                    digest, arrays = content = self._decode(config)
                    remove_temporaries(path)  # of killed processes
                    write_atomically(path, lambda file: file.write(save(arrays, metadata={"content": digest})))
        except OSError as error:
            advice = "so every run reads all images; set --cache_path to a writable folder"
            log.info(f"cannot write the image cache {path} ({error.strerror}), {advice}")
        return content or self._decode(config)

    def _decode(self, config: Config) -> Content:
        """Read every file once, for its digest and, unless they are streamed or this is a dry run, its pixels."""
        from tqdm import tqdm

        size = 0 if self.streamed or config.dry_run else self.image_shape[1]
        digest, arrays = hashlib.sha256(), {}
        for part in ("train", "test"):
            files = [*self.listed_files(config).digest_keys(part)]
            images = np.empty((len(files), 3, size, size), dtype=np.uint8)
            bar = tqdm(files, desc=f"reading {part} images", unit="img", disable=True if config.non_verbose else None)
            for index, (key, path) in enumerate(bar):
                content = read_file(path)
                digest.update(key + f" {hashlib.sha256(content).hexdigest()}\n".encode())
                if size:
                    images[index] = decode(path, content, size, resize=self.resize)
            arrays[f"{part}_images"] = images
        if size:
            arrays["mean"], arrays["std"] = channel_statistics(arrays["train_images"])
        return digest.hexdigest()[:16], arrays if size else {}


class CachedImages(FromFiles, ClassDataset):
    """A data set of image files that are decoded once and held in memory."""

    statistics: tuple[tuple[float, ...], tuple[float, ...]]  # mean and std of the training images, set by `read`

    def read(self, config: Config) -> RawData:
        files, arrays, self._arrays = self.listed_files(config), self._arrays, None
        if arrays is None:
            _, arrays = load(self.cache_file(config)) or self._load_or_decode(config)
        self.statistics = tuple(arrays["mean"].tolist()), tuple(arrays["std"].tolist())
        return RawData(arrays["train_images"], files.train.labels, arrays["test_images"], files.test.labels)


def load(path: Path, *, header_only: bool = False) -> Content | None:
    """Return the content of a cache file, without arrays if `header_only`; None if it is missing or damaged."""
    from safetensors import safe_open

    try:
        with safe_open(path, framework="np") as file:
            names = [] if header_only else file.keys()
            return file.metadata()["content"], {name: file.get_tensor(name) for name in names}
    except Exception:  # a damaged file can raise almost anything
        return None


def channel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of every channel in [0, 1], exactly, from counts of the 256 values."""
    values = np.arange(256) / 255
    shares = np.stack([np.bincount(channel.ravel(), minlength=256) for channel in images.swapaxes(0, 1)])
    shares = shares / shares.sum(1, keepdims=True)
    mean = shares @ values
    return mean, np.sqrt(shares @ values**2 - mean**2).clip(min=1e-6)
