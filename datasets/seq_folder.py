"""`seq-folder`: any tree of images `train/<class>/*` and `test/<class>/*` below --base_path.

The images are decoded once, resized and centre-cropped to --image_size, and kept as one tensor in a cache file;
mean and standard deviation come from the training images. Real images without a download:

    python main.py --model er_ace --norm adab2n --dataset seq-folder --base_path photos --n_tasks 5
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

from datasets.dataset import BASE_PATH, SPLIT_OPTIONS, ClassDataset, RawData
from utils.config.options import Option, Rule, integer, text
from utils.config.registry import DATASETS
from utils.data.augment import Crop, Flip
from utils.data.stream import StreamSpec
from utils.errors import UsageError
from utils.files import waiting_lock, write_atomically

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}

OPTIONS = (
    BASE_PATH,
    *SPLIT_OPTIONS,
    Option("image_size", integer(1, 4096), "width and height in pixels that images are brought to", default=32),
    Option("train_per_class", integer(1), "use only the first so many training images of a class, by file name"),
    Option("test_per_class", integer(1), "use only the first so many test images of a class, by file name"),
    Option(
        "cache_path",
        text,
        "folder for the decoded images (default: --base_path)",
        changes_numbers=False,
    ),
)


@DATASETS.register(
    "seq-folder",
    help="a folder of images train/<class>/* and test/<class>/*",
    options=OPTIONS,
    rules=(Rule({"buffer_size": 500, "lr": 0.03}),),
)
class SeqFolder(ClassDataset):
    name = "seq-folder"
    augmentation = (Crop(padding=4), Flip())
    _files: ImageFiles | None = None

    def files(self, config) -> ImageFiles:
        if self._files is None:
            root, cache = Path(config.base_path), Path(config.cache_path or config.base_path)
            try:
                self._files = list_images(root, cache, config.train_per_class, config.test_per_class)
                _ = self._files.digest
            except OSError as error:
                raise UsageError(f"cannot read the images: {error}; check --base_path and --cache_path") from error
        return self._files

    def class_sizes(self, config):
        files = self.files(config)
        return np.array([len(f) for f in files.train]), np.array([len(f) for f in files.test])

    def fingerprint(self, config) -> str:
        return self.files(config).digest

    def spec(self, config) -> StreamSpec:
        self.image_shape = (3, config.image_size, config.image_size)
        # Known only once the images have been decoded; `stream` fills them in.
        self.mean = self.std = (0.0, 0.0, 0.0)
        return super().spec(config)

    def stream(self, config, spec: StreamSpec):
        from dataclasses import replace

        stream = super().stream(config, spec)
        return replace(stream, spec=replace(spec, mean=self.mean, std=self.std))

    def read(self, config) -> RawData:
        files = self.files(config)
        cache = files.cache / f"seq-folder-{files.digest}-{config.image_size}px.safetensors"
        try:
            files.cache.mkdir(parents=True, exist_ok=True)
            files.keep_digest()
            with waiting_lock(cache.with_suffix(".lock")):  # runs that start together decode once
                if not cache.is_file():
                    decode_into(cache, files, config.image_size, quiet=config.non_verbose)
        except OSError as error:
            raise UsageError(f"cannot write the image cache {cache}: {error.strerror}; set --cache_path") from error
        return self._load(cache)

    def _load(self, cache: Path) -> RawData:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            arrays = load_file(cache)
            self.mean, self.std = (tuple(map(float, arrays[name])) for name in ("mean", "std"))
            return RawData(*(arrays[f"{part}_{what}"] for part in ("train", "test") for what in ("images", "labels")))
        except (SafetensorError, OSError, KeyError) as error:
            raise UsageError(f"the image cache {cache} is damaged ({error}): delete it and run again") from error


class ImageFiles:
    """The images of every class, in order of class and file name, and a digest of their contents.

    Reading them all for the digest takes a while, so it is kept in the cache folder under a digest of names, sizes
    and times of change.
    """

    def __init__(self, root: Path, cache: Path, train: list[list[Path]], test: list[list[Path]]):
        self.root, self.cache, self.train, self.test = root, cache, train, test

    def _paths(self) -> Iterator[tuple[str, Path]]:
        return ((str(path.relative_to(self.root)), path) for paths in (*self.train, *self.test) for path in paths)

    @cached_property
    def _digest_path(self) -> Path:
        stats = ((name, path.stat()) for name, path in self._paths())
        seen = "".join(f"{name} {stat.st_size} {stat.st_mtime_ns}\n" for name, stat in stats)
        return self.cache / f"seq-folder-{hashlib.sha256(seen.encode()).hexdigest()[:16]}.digest"

    @cached_property
    def digest(self) -> str:
        if self._digest_path.is_file():
            return self._digest_path.read_text()
        digest = hashlib.sha256()
        for name, path in self._paths():
            digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        return digest.hexdigest()[:16]

    def keep_digest(self) -> None:
        if not self._digest_path.is_file():
            write_atomically(self._digest_path, lambda file: file.write(self.digest.encode()))


def list_images(root: Path, cache: Path, train_limit: int | None, test_limit: int | None) -> ImageFiles:
    for part in ("train", "test"):
        if not (root / part).is_dir():
            raise UsageError(
                f"no folder {root / part}: point --base_path to a folder with train/<class>/* and test/<class>/*"
            )
    classes = sorted(path.name for path in (root / "train").iterdir() if path.is_dir())
    if not classes:
        raise UsageError(f"{root / 'train'} has no class folders: put the images into train/<class>/")
    extra = {path.name for path in (root / "test").iterdir() if path.is_dir()} - set(classes)
    if extra:
        raise UsageError(f"{root / 'test'} has classes without training images: {', '.join(sorted(extra))}")
    parts = {
        part: [_images_in(root / part / name, limit) for name in classes]
        for part, limit in (("train", train_limit), ("test", test_limit))
    }
    return ImageFiles(root, cache, parts["train"], parts["test"])


def _images_in(folder: Path, limit: int | None) -> list[Path]:
    found = sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise UsageError(f"no images in {folder}: every class needs training and test images")
    if limit is not None and len(found) < limit:
        raise UsageError(f"{folder} has {len(found)} images, fewer than the {limit} asked for")
    return found[:limit]


def decode_into(cache: Path, files: ImageFiles, size: int, *, quiet: bool) -> None:
    from safetensors.numpy import save
    from tqdm import tqdm

    total = sum(map(len, files.train)) + sum(map(len, files.test))
    arrays = {}
    with tqdm(total=total, desc="decoding images", unit="img", disable=True if quiet else None) as bar:
        for part, classes in (("train", files.train), ("test", files.test)):
            images = np.empty((sum(map(len, classes)), 3, size, size), dtype=np.uint8)
            for index, path in enumerate(path for paths in classes for path in paths):
                images[index] = decode(path, size)
                bar.update()
            arrays[f"{part}_images"] = images
            arrays[f"{part}_labels"] = np.arange(len(classes)).repeat([len(paths) for paths in classes])
    arrays["mean"], arrays["std"] = channel_statistics(arrays["train_images"])
    write_atomically(cache, lambda file: file.write(save(arrays)))


def decode(path: Path, size: int) -> np.ndarray:
    """(3, size, size): the shorter side resized to `size`, the middle of the longer one kept."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            rgb = ImageOps.fit(_rgb(image), (size, size), Image.Resampling.BILINEAR)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UsageError(f"cannot read the image {path}: {error}; repair or remove it") from error
    return np.asarray(rgb).transpose(2, 0, 1)


def _rgb(image):
    """Pillow would cut 16-bit shades at 255; they are scaled instead."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) // 257).astype(np.uint8))
    return image.convert("RGB")


def channel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of every channel in [0, 1], exactly, from counts of the 256 values."""
    values = np.arange(256) / 255
    shares = np.stack([np.bincount(channel.ravel(), minlength=256) for channel in images.swapaxes(0, 1)])
    shares = shares / shares.sum(1, keepdims=True)
    mean = shares @ values
    return mean, np.sqrt(shares @ values**2 - mean**2).clip(min=1e-6)
