"""`seq-miniimg`: Split Mini-ImageNet, 20 tasks of 5 classes, 84x84 pixels, 500 training and 100 test images a class.

There is no public download, so the files come from the user, in one of three layouts below --base_path:

- four arrays `train_x.npy train_y.npy test_x.npy test_y.npy` (uint8, NHWC);
- the three few-shot pickles `mini-imagenet-cache-{train,val,test}.pkl`. The first 500 images of every class are for
  training, the last 100 for testing;
- images of 84x84 pixels `MiniImageNet/train/<class>/*` and `MiniImageNet/test/<class>/*`, which are decoded once.

Labels of the latter two follow the sorted names of the classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from datasets.dataset import Config, RawData
from datasets.image_cache import CACHED_OPTIONS, CachedImages
from datasets.image_files import ImageFiles, check_counts, list_images
from datasets.numpy_pickle import load_numpy_pickle
from utils.config.options import ByFidelity, Rule
from utils.config.registry import DATASETS
from utils.data.augment import Crop, Flip
from utils.errors import DataMissing, UsageError

ARRAYS = ("train_x.npy", "train_y.npy", "test_x.npy", "test_y.npy")
TREE = "MiniImageNet"
PICKLES = tuple(f"mini-imagenet-cache-{part}.pkl" for part in ("train", "val", "test"))
TRAIN_PER_CLASS, TEST_PER_CLASS = 500, 100


@DATASETS.register(
    "seq-miniimg",
    help="Split Mini-ImageNet, 20 x 5 classes, from the user's files",
    options=CACHED_OPTIONS,
    rules=(
        Rule({"n_tasks": 20, "buffer_size": 2000, "lr": 0.1, "lambd": 1e-3}),
        Rule({"lambd": 1e-5}, when={"penalty_norm": "sum"}),
        Rule({"alpha": 0.3, "beta": 0.8}, when={"model": ("derpp", "derpp_lider")}),
        # The released code decays at epoch 35 (60 and 75 lie past the last) and never undoes it.
        Rule(
            {
                "lr_milestones": (35, 60, 75),
                "lr_factor": 0.2,
                "lr_restart": ByFidelity(official="never", paper="task"),
            },
            when={"scenario": "offline"},
        ),
    ),
)
class SeqMiniImageNet(CachedImages):
    name = "seq-miniimg"
    n_classes = 100
    image_shape = (3, 84, 84)
    mean = (0.47313006, 0.44905752, 0.40378186)
    std = (0.27292014, 0.26559181, 0.27953038)
    augmentation = (Crop(padding=4), Flip())

    def class_sizes(self, config: Config) -> tuple[np.ndarray, np.ndarray]:
        return np.full(self.n_classes, TRAIN_PER_CLASS), np.full(self.n_classes, TEST_PER_CLASS)

    def fingerprint(self, config: Config) -> str:
        """Return a digest of the files: there is no canonical Mini-ImageNet to compare them with."""
        files = _files(Path(config.base_path))
        if files is None:
            return super().fingerprint(config)
        digest = hashlib.sha256()
        for path in files:
            digest.update(f"{path.name} {_digest_of(path)}\n".encode())
        return digest.hexdigest()[:16]

    def read(self, config: Config) -> RawData:
        folder = Path(config.base_path)
        files = _files(folder)
        if files is None:
            return super().read(config)
        raw = read_arrays(folder) if files[0].name in ARRAYS else read_pickles(folder)
        self._check(raw, folder)
        return raw

    def source(self, config: Config) -> str:
        return super().source(config) if _files(Path(config.base_path)) is None else config.base_path

    def names(self, config: Config) -> Sequence[str]:
        """Return the names of a tree's classes; the other layouts have indices."""
        return super().names(config) if _files(Path(config.base_path)) is None else [*map(str, range(self.n_classes))]

    def files(self, config: Config) -> ImageFiles:
        """Return the files of the tree."""
        files = list_images(Path(config.base_path) / TREE)
        if len(files.classes) != self.n_classes:
            raise UsageError(f"{files.root / 'train'} has {len(files.classes)} classes instead of {self.n_classes}")
        check_counts(files, TRAIN_PER_CLASS, TEST_PER_CLASS)
        return files

    def _check(self, raw: RawData, folder: Path) -> None:
        for part, images, labels, per_class in (
            ("train", raw.train_images, raw.train_labels, TRAIN_PER_CLASS),
            ("test", raw.test_images, raw.test_labels, TEST_PER_CLASS),
        ):
            shape = (self.n_classes * per_class, *self.image_shape)
            if images.shape != shape or images.dtype != np.uint8:
                raise UsageError(
                    f"{folder}: the {part} images are {images.dtype} of shape {images.shape} (as NCHW), "
                    f"Mini-ImageNet has uint8 of {shape}"
                )
            in_range = (labels >= 0) & (labels < self.n_classes)
            counts = np.bincount(labels[in_range], minlength=self.n_classes)
            if labels.shape != shape[:1] or (counts != per_class).any():
                raise UsageError(
                    f"{folder}: the {part} labels are not {per_class} of each class 0..{self.n_classes - 1}"
                )


def _files(folder: Path) -> list[Path] | None:
    """Return the files of the layout in a folder; None for a tree of images."""
    for names in (ARRAYS, PICKLES):
        if all((folder / name).is_file() for name in names):
            return [folder / name for name in names]
    if (folder / TREE).is_dir():
        return None
    raise DataMissing(
        f"no Mini-ImageNet in {folder}: point --base_path to a folder with {', '.join(ARRAYS)}, "
        f"with {', '.join(PICKLES)}, or with {TREE}/train/<class>/* and {TREE}/test/<class>/*"
    )


def _digest_of(path: Path) -> str:
    try:
        stat = path.stat()
        return _read_digest(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


@cache
def _read_digest(path: Path, size: int, changed: int) -> str:
    """Read the file once in a process: a sweep asks for the digest for every run."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_arrays(folder: Path) -> RawData:
    train_x, train_y, test_x, test_y = (_load_array(folder / name) for name in ARRAYS)
    return RawData(_nchw(train_x), _labels(train_y), _nchw(test_x), _labels(test_y))


def _load_array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # a damaged header can raise almost anything
        raise UsageError(f"{path} is not a readable npy file: {error}") from error
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{path} holds an archive instead of one array")
    return array


def read_pickles(folder: Path) -> RawData:
    """Return the classes of all three files, labelled by sorted synset."""
    images_of: dict[str, np.ndarray] = {}
    for name in PICKLES:
        content = load_numpy_pickle(folder / name)
        try:
            images = np.asarray(content["image_data"])
            for synset, members in content["class_dict"].items():
                images_of[str(synset)] = images[np.asarray(members)]
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise UsageError(f"{folder / name} does not hold image_data and class_dict: {error!r}") from error
    if any(len(images) < TRAIN_PER_CLASS + TEST_PER_CLASS for images in images_of.values()):
        raise UsageError(f"{folder}: a class has fewer than {TRAIN_PER_CLASS + TEST_PER_CLASS} images")
    shapes = {images.shape[1:] for images in images_of.values()}
    if len(shapes) != 1:
        raise UsageError(f"{folder}: the classes have images of different shapes, {sorted(shapes)}")
    ordered = [images_of[synset] for synset in sorted(images_of)]
    return RawData(
        _nchw(np.concatenate([images[:TRAIN_PER_CLASS] for images in ordered])),
        np.arange(len(ordered)).repeat(TRAIN_PER_CLASS),
        _nchw(np.concatenate([images[-TEST_PER_CLASS:] for images in ordered])),
        np.arange(len(ordered)).repeat(TEST_PER_CLASS),
    )


def _nchw(images: np.ndarray) -> np.ndarray:
    if images.ndim != 4:
        raise UsageError(f"Mini-ImageNet images must be an array of 4 dimensions (NHWC), got shape {images.shape}")
    return images.transpose(0, 3, 1, 2)


def _labels(labels: np.ndarray) -> np.ndarray:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or (len(labels) and labels.min() < 0):
        raise UsageError("Mini-ImageNet labels must be one row of whole numbers from 0")
    return labels.astype(np.int64)
