"""Image files: listing those of a data set, and decoding one."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path

import numpy as np

from utils.data.file_stream import Files
from utils.errors import DataMissing, UsageError
from utils.files import file_errors

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
# Bump when the same files give other pixels, so that older caches and records are not used for them.
DECODING = 2


@dataclass(frozen=True)
class ImageFiles:
    """The images of a data set, in their order."""

    root: Path  # folder that the names of files are relative to
    classes: list[str]
    train: Files  # where tasks are domains, a label is domain * classes + class
    test: Files
    labels_in_digest: bool = False  # labels are part of the content, because paths and order do not determine them

    def path(self, name: bytes) -> Path:
        return self.root / os.fsdecode(name)

    def digest_keys(self, part: str) -> Iterator[tuple[bytes, Path]]:
        """Yield what the content digest says of each file beside its content, and the file."""
        files = self.train if part == "train" else self.test
        for name, label in zip(files.names, files.labels.tolist(), strict=True):
            yield f"{part} {label} ".encode() + name if self.labels_in_digest else name, self.path(name)

    @cached_property
    def stat_digest(self) -> str:
        """A digest of names, sizes and modification times, which takes no reading."""
        digest = hashlib.sha256()
        for key, path in (*self.digest_keys("train"), *self.digest_keys("test")):
            stat = path.stat()
            digest.update(key + f"\0{stat.st_size} {stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:16]

    def sizes(self, n_labels: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of training and of test images of every label."""
        n_labels = n_labels or len(self.classes)
        return np.bincount(self.train.labels, minlength=n_labels), np.bincount(self.test.labels, minlength=n_labels)


def list_images(root: Path, train_limit: int | None = None, test_limit: int | None = None) -> ImageFiles:
    """Return the images in `train/<class>/*` and `test/<class>/*`, at most the first so many of a class by name."""
    for part in ("train", "test"):
        if not (root / part).is_dir():
            raise UsageError(f"no folder {root / part}; --base_path needs train/<class>/* and test/<class>/*")
    classes = sorted(path.name for path in (root / "train").iterdir() if path.is_dir())
    if not classes:
        raise UsageError(f"{root / 'train'} has no class folders; put the images into train/<class>/")
    if extra := {path.name for path in (root / "test").iterdir() if path.is_dir()} - set(classes):
        raise UsageError(f"{root / 'test'} has classes without training images ({', '.join(sorted(extra))})")
    train, test = (
        files_by_label(root, [images_in(root / part / name, limit) for name in classes])
        for part, limit in (("train", train_limit), ("test", test_limit))
    )
    return ImageFiles(root, classes, train, test)


def find_root(base_path: Path, folder: str, needed: Sequence[str], layout: str) -> Path:
    """Return the folder of this name in `base_path`, or `base_path`, whichever has what is needed."""
    for root in (base_path / folder, base_path):
        if all((root / name).exists() for name in needed):
            return root
    raise DataMissing(f"no {folder} in {base_path}: point --base_path to the folder that holds {folder}/ with {layout}")


def images_in(folder: Path, limit: int | None = None) -> list[Path]:
    images = sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)
    if not images:
        raise UsageError(f"no images in {folder}; every class needs training and test images")
    if limit is not None and len(images) < limit:
        raise UsageError(f"{folder} has {len(images)} images, fewer than the {limit} asked for")
    return images[:limit]


def files_by_label(root: Path, groups: Sequence[Sequence[Path]]) -> Files:
    """Return the files of all groups, labelled by the number of their group."""
    names = [os.fsencode(path.relative_to(root)) for group in groups for path in group]
    return Files(np.array(names), np.arange(len(groups)).repeat([len(group) for group in groups]))


def check_counts(files: ImageFiles, n_classes: int, train: int, test: int) -> None:
    """Raise a UsageError unless there are so many classes, each with this number of training and test images."""
    if not len(files.classes) == len(set(files.classes)) == n_classes:
        raise UsageError(f"{files.root} has {len(set(files.classes))} classes instead of {n_classes}, each once")
    for part, sizes, expected in zip(("train", "test"), files.sizes(), (train, test), strict=True):
        for name, size in zip(files.classes, sizes.tolist(), strict=True):
            if size != expected:
                raise UsageError(f"{files.root} has {size} {part} images of {name} instead of {expected}")


def read_file(path: Path) -> bytes:
    with file_errors("read the image", path, "repair or remove it"):
        return path.read_bytes()


def decode(path: Path, content: bytes, size: int, *, resize: bool) -> np.ndarray:
    """Return an image as uint8 (3, size, size). EXIF rotation is applied, and transparent parts become black.

    With `resize`, the shorter side is resized, and the middle of the longer one is kept; otherwise, images of another
    size are refused.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(BytesIO(content)) as file:
            if file.mode[0] in "IF":
                raise ValueError("it does not have 8 bits per channel")
            image = ImageOps.exif_transpose(file)
            if image.has_transparency_data:
                image = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image)
            image = image.convert("RGB")
            if resize:
                image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
            if image.size != (size, size):
                raise ValueError(f"it has {image.width}x{image.height} pixels instead of {size}x{size}")
            return np.asarray(image).transpose(2, 0, 1)
    except Exception as error:  # a damaged file can raise almost anything
        raise UsageError(f"cannot read the image {path}: {error}; repair or remove it") from error
