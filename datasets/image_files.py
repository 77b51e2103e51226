"""Image files: which there are in a tree `train/<class>/*` and `test/<class>/*` or a list, and the pixels of one."""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from utils.data.file_stream import Files
from utils.errors import UsageError

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
# Raised when the same files give other pixels, so that older caches and records are not taken for today's.
DECODING = 2
MANY = 10_000  # images, which take a while to read


@dataclass(frozen=True)
class ImageFiles:
    """The images of every class, in order of class and file name."""

    root: Path
    train: list[list[Path]]
    test: list[list[Path]]
    classes: list[str]

    def named(self) -> Iterator[tuple[bytes, Path]]:
        """All of them, with their names below the root: as bytes, since a name need not be valid text."""
        paths = (path for paths in (*self.train, *self.test) for path in paths)
        return ((os.fsencode(path.relative_to(self.root)), path) for path in paths)

    def content_digest(self) -> str:
        """Of all names and contents."""
        return digest_of(self.named())


@dataclass(frozen=True)
class Listing:
    """Images for a stream, with a number for what each is of: its class, or where tasks are domains
    domain * classes + class."""

    root: Path
    classes: list[str]
    train: Files
    test: Files

    def named(self) -> Iterator[tuple[bytes, Path]]:
        """All of them, with what they are of and their names below the root."""
        for part, files in (("train", self.train), ("test", self.test)):
            for name, number in zip(files.names, files.labels.tolist(), strict=True):
                yield f"{part} {number} ".encode() + name, self.root / os.fsdecode(name)

    def content_digest(self) -> str:
        count = len(self.train.names) + len(self.test.names)
        if count > MANY:
            print(f"note: reads all {count} images in {self.root} once, to know them again", file=sys.stderr)
        return digest_of(self.named())


def files_of(root: Path, groups: Sequence[Sequence[Path]]) -> Files:
    """Numbered by the group that each is in."""
    names = [os.fsencode(path.relative_to(root)) for group in groups for path in group]
    return Files(np.array(names), np.arange(len(groups)).repeat([len(group) for group in groups]))


def digest_of(named: Iterator[tuple[bytes, Path]]) -> str:
    digest = hashlib.sha256()
    for name, path in named:
        digest.update(name + f" {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def list_images(root: Path, train_limit: int | None = None, test_limit: int | None = None) -> ImageFiles:
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
        part: [images_in(root / part / name, limit) for name in classes]
        for part, limit in (("train", train_limit), ("test", test_limit))
    }
    return ImageFiles(root, parts["train"], parts["test"], classes)


def images_in(folder: Path, limit: int | None = None) -> list[Path]:
    found = sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise UsageError(f"no images in {folder}: every class needs training and test images")
    for path in found:
        if not path.is_file():  # a pipe or a device would be waited on for ever
            raise UsageError(f"{path} is named like an image, but is no file or link to one: rename or remove it")
    if limit is not None and len(found) < limit:
        raise UsageError(f"{folder} has {len(found)} images, fewer than the {limit} asked for")
    return found[:limit]


def check_counts(classes: list[list[Path]], per_class: int) -> None:
    for paths in classes:
        if len(paths) != per_class:
            raise UsageError(f"{paths[0].parent} has {len(paths)} images instead of {per_class}")


def read_image(path: Path) -> np.ndarray:
    """(H, W, 3) uint8: turned upright as its EXIF data say, on black where it is transparent, 16-bit shades scaled.

    Shades of unknown range are refused. What Pillow warns of becomes a line that names the file.
    """
    return _read(path, np.asarray)


def decode(path: Path, size: int, *, noted: bool = True) -> np.ndarray:
    """(3, size, size): the shorter side resized to `size`, the middle of the longer one kept."""
    from PIL import Image, ImageOps

    def fit(image) -> np.ndarray:
        return np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR))

    return _read(path, fit, noted=noted).transpose(2, 0, 1)


def _read(path: Path, pixels_of: Callable, *, noted: bool = True) -> np.ndarray:
    from PIL import Image

    try:
        # Given the path, Pillow would map the pixels of a rotated TIFF into memory with width and height swapped.
        with warnings.catch_warnings(record=True) as warned, open(path, "rb") as file, Image.open(file) as image:
            warnings.simplefilter("always")
            if reason := _unfit(image):
                raise UsageError(f"cannot read the image {path}: {reason}")
            _turn_upright(image)
            pixels = pixels_of(_rgb(image))
    except UsageError:
        raise
    except Exception as error:  # a damaged file can raise almost anything
        raise UsageError(f"cannot read the image {path}: {error}; repair or remove it") from error
    if noted:
        for text in dict.fromkeys(" ".join(str(warning.message).split()) for warning in warned):
            print(f"note: {path}: {text}", file=sys.stderr)
    return pixels


def read_exactly(path: Path, size: int) -> np.ndarray:
    """(3, size, size) of an image that must have this size."""
    image = read_image(path).transpose(2, 0, 1)
    if image.shape[1:] != (size, size):
        raise UsageError(f"{path} is an image of {image.shape[2]}x{image.shape[1]} pixels instead of {size}x{size}")
    return image


def _unfit(image) -> str | None:
    if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):  # Pillow brings those to 16 bit
        return "its shades are signed, 32-bit or floating-point, of unknown range; convert it to 8 or 16 bit"
    if "transparency" in image.info and any(tile.args in ("L;2", "L;4", "RGB;16B") for tile in image.tile):
        # Pillow brings the pixels to 8 bit, but not the colour that stands for transparent.
        return "it has a transparent colour, but not 8 bit; convert it to 8 bit"
    return None


def _turn_upright(image) -> None:
    from PIL import ImageOps

    image.load()
    image.getexif()  # remembered, so that nothing is written back: that fails where a tag is of an odd type
    for name in ("exif", "Raw profile type exif"):
        image.info.pop(name, None)
    ImageOps.exif_transpose(image, in_place=True)


def _rgb(image):
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bit: Pillow would cut the shades at 255
        shades = np.asarray(image)
        shades = np.where(shades == image.info.get("transparency", -1), 0, shades)
        image = Image.fromarray((shades // 257).astype(np.uint8))
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image)
    return image.convert("RGB")
