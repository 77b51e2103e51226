"""Image files: listing those of a data set, and decoding one."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from utils.data.file_stream import ADVICE, DamagedImage, Files, damage_error
from utils.errors import DataMissing, UsageError

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
# Bump when the same files give other pixels, so that older caches and records are not used for them.
DECODING = 2


@dataclass(frozen=True)
class ImageFiles:
    """The images of a data set, in their order."""

    root: Path  # folder that the names of files are relative to
    classes: Sequence[str]  # empty for files of many images each, which are not listed one by one
    train: Files  # where tasks are domains, a label is domain * classes + class
    test: Files
    layout: str  # what was found in the root, for the user
    labels_in_digest: bool = False  # labels are part of the content, because paths and order do not determine them
    domains: Sequence[str] = ()  # where tasks are domains
    selection: Any = None  # options that choose among the files of the root, as JSON has them
    published_name: Callable[[bytes], bytes] = bytes  # of a file's name; the digest has it, and so is of every layout
    advice: str = ADVICE  # what to do with damaged images

    def path(self, name: bytes) -> Path:
        return self.root / os.fsdecode(name)

    def digest_keys(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield what the content digest says of each file beside its content, and the file's name."""
        for part, files in (("train", self.train), ("test", self.test)):
            for name, label in zip(files.names.tolist(), files.labels.tolist(), strict=True):
                key = self.published_name(name)
                yield f"{part} {label} ".encode() + key if self.labels_in_digest else key, name

    @cached_property
    def stat_digest(self) -> str:
        """A digest of names, sizes and modification times, which takes no reading."""
        digest, missing, root = hashlib.sha256(), [], os.fsencode(self.root)
        for key, name in self.digest_keys():
            try:
                stat = os.stat(os.path.join(root, name))
            except OSError as error:
                missing.append(f"{self.path(name)} ({error.strerror})")
                continue
            digest.update(key + f"\0{stat.st_size} {stat.st_mtime_ns}\n".encode())
        if missing:
            raise damage_error(missing, self.advice)
        return digest.hexdigest()[:16]

    def sizes(self, n_labels: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of training and of test images of every label."""
        n_labels = n_labels or len(self.classes)
        return np.bincount(self.train.labels, minlength=n_labels), np.bincount(self.test.labels, minlength=n_labels)


def list_images(root: Path, train_limit: int | None = None, test_limit: int | None = None) -> ImageFiles:
    """Return the images in `train/<class>/*` and `test/<class>/*`, at most the first so many of a class by name.

    `val/` stands in for a missing `test/`, and gives the same run.
    """
    test_part = next((part for part in ("test", "val") if (root / part).is_dir()), None)
    if test_part is None:
        raise UsageError(f"{root} has train/, but neither test/ nor val/; add one with the same classes")
    classes = subfolders(root / "train")
    if not classes:
        raise UsageError(f"{root / 'train'} has no class folders; put the images into train/<class>/")
    if extra := {*subfolders(root / test_part)} - {*classes}:
        raise UsageError(f"{root / test_part} has classes without training images ({', '.join(sorted(extra))})")
    train, test = (
        files_by_label(root, [images_in(root / part / name, limit) for name in classes])
        for part, limit in (("train", train_limit), (test_part, test_limit))
    )
    layout, selection = f"train/<class>/* and {test_part}/<class>/*", [train_limit, test_limit]
    return ImageFiles(root, classes, train, test, layout, selection=selection, published_name=_with_test_part)


def _with_test_part(name: bytes) -> bytes:
    return b"test" + name[3:] if name.startswith(b"val/") else name


def find_root(base_path: Path, folder: str, needed: Sequence[str], layout: str) -> Path:
    """Return the folder of this name in `base_path`, or `base_path`, whichever has what is needed."""

    def has_all(root: Path) -> bool:
        return all((root / name).exists() for name in needed)

    for root in (base_path / folder, base_path):
        if has_all(root):
            return root
    advice = nearby_advice(base_path, lambda root: has_all(root) or has_all(root / folder))
    advice = advice or f"set --base_path to the folder that holds {f'{folder}/ with ' if folder else ''}{layout}"
    raise DataMissing(f"no {folder or layout} in {base_path}; {advice}")


def nearby_advice(base_path: Path, is_right: Callable[[Path], bool]) -> str | None:
    """Return advice to set --base_path to a folder in or above it which is right; None if there is none."""
    nearby = [*(base_path / name for name in subfolders(base_path)), base_path.resolve().parent]
    return next((f"set --base_path to {path}" for path in nearby if is_right(path)), None)


def subfolders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted; none if it is missing. Hidden ones are left out."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in os.scandir(folder) if entry.name[0] != "." and entry.is_dir())


def images_in(folder: Path, limit: int | None = None) -> list[Path]:
    """Return the images in a folder, sorted by name. Hidden ones are left out."""
    names = os.listdir(folder) if folder.is_dir() else []
    images = sorted(name for name in names if name[0] != "." and os.path.splitext(name)[1].lower() in SUFFIXES)
    if not images:
        raise UsageError(f"no images in {folder}; every class needs training and test images")
    if limit is not None and len(images) < limit:
        raise UsageError(f"{folder} has {len(images)} images, fewer than the {limit} asked for")
    return [folder / name for name in images[:limit]]


def files_by_label(root: Path, groups: Sequence[Sequence[Path]]) -> Files:
    """Return the files of all groups, labelled by the number of their group."""
    start = len(os.path.join(root, ""))
    names = [os.fsencode(path)[start:] for group in groups for path in group]
    return Files(np.array(names), np.arange(len(groups)).repeat([len(group) for group in groups]))


def check_counts(files: ImageFiles, n_classes: int, train: int, test: int) -> None:
    """Raise a UsageError unless there are so many classes, each with this number of training and test images."""
    advice = "download the data set again, or use --dataset seq-folder for images of your own"
    if not len(files.classes) == (count := len(set(files.classes))) == n_classes:
        raise UsageError(f"{files.root} has {count} classes instead of {n_classes}, each once; {advice}")
    for part, sizes, expected in zip(("train", "test"), files.sizes(), (train, test), strict=True):
        for name, size in zip(files.classes, sizes.tolist(), strict=True):
            if size != expected:
                raise UsageError(f"{files.root} has {size} {part} images of {name} instead of {expected}; {advice}")


def read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamagedImage(f"{path} ({error.strerror})") from error


def decode(path: Path, content: bytes, size: int, *, resize: bool) -> np.ndarray:
    """Return an image as uint8 (3, size, size). EXIF rotation is applied, and transparent parts become black.

    With `resize`, the shorter side is resized, and the middle of the longer one is kept; otherwise, images of another
    size are refused.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

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
    except UnidentifiedImageError as error:
        raise DamagedImage(f"{path} (it is not an image)") from error
    except Exception as error:  # a damaged file can raise almost anything
        raise DamagedImage(f"{path} ({' '.join(str(error).split())})") from error
