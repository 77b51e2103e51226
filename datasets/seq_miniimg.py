"""`seq-miniimg`: Split Mini-ImageNet, 20 tasks of 5 classes, 84x84 pixels, 500 training and 100 test images a class.

The user's files below --base_path are four arrays `{train,test}_{x,y}.npy` (uint8, NHWC), the three few-shot pickles
`mini-imagenet-cache-{train,val,test}.pkl`, of which the first 500 images of every class are for training and the last
100 for testing, or images `MiniImageNet/{train,test}/<class>/*`. Labels of the latter two follow the sorted names.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from datasets.dataset import Config, RawData
from datasets.image_cache import CACHED_OPTIONS, CachedImages
from datasets.image_files import ImageFiles, list_images
from datasets.numpy_pickle import load_numpy_pickle
from utils.config.options import ByFidelity, Rule
from utils.config.registry import DATASETS
from utils.data.augment import Crop, Flip
from utils.errors import DataMissing, UsageError

ARRAYS = ("train_x.npy", "train_y.npy", "test_x.npy", "test_y.npy")
TREE = "MiniImageNet"
PICKLES = tuple(f"mini-imagenet-cache-{part}.pkl" for part in ("train", "val", "test"))


@DATASETS.register(
    "seq-miniimg",
    help="Split Mini-ImageNet, 20 x 5 classes, from the user's files",
    options=CACHED_OPTIONS,
    rules=(
        Rule({"n_tasks": 20, "buffer_size": 2000, "lr": 0.1, "lambd": 1e-3}),
        Rule({"lambd": 1e-5}, when={"penalty_norm": "sum"}),
        Rule({"alpha": 0.3, "beta": 0.8}, when={"model": ("derpp", "derpp_lider")}),
        # The released code decays at epoch 35 (60 and 75 lie past the last) and never undoes it.
        Rule({"lr_milestones": (35, 60, 75), "lr_factor": 0.2}, when={"scenario": "offline"}),
        Rule({"lr_restart": ByFidelity(official="never", paper="task")}, when={"scenario": "offline"}),
    ),
)
class SeqMiniImageNet(CachedImages):
    name = "seq-miniimg"
    n_classes = 100
    images_per_class: tuple[int, int] = (500, 100)
    image_shape = (3, 84, 84)
    mean, std = (0.47313006, 0.44905752, 0.40378186), (0.27292014, 0.26559181, 0.27953038)
    augmentation = (Crop(padding=4), Flip())

    def fingerprint(self, config: Config) -> str:
        """Return a digest of the files: there is no canonical Mini-ImageNet to compare them with."""
        files = _files(Path(config.base_path))
        if files is None:
            return super().fingerprint(config)
        digest = hashlib.sha256()
        for path in files:
            digest.update(f"{path.name} {_file_digest(path, path.stat().st_mtime_ns)}\n".encode())
        return digest.hexdigest()[:16]

    def read(self, config: Config) -> RawData:
        files = _files(Path(config.base_path))
        if files is None:
            return super().read(config)
        raw, arrays = read_arrays(files) if files[0].name in ARRAYS else read_pickles(files, *self.images_per_class), []
        for part, (images, labels), per_class in zip(("train", "test"), raw.splits, self.images_per_class, strict=True):
            expected = np.arange(self.n_classes).repeat(per_class)
            shape = (len(expected), *self.image_shape[1:], 3)
            is_fit = images.shape == shape and images.dtype == np.uint8
            if not is_fit or not np.array_equal(np.sort(labels, axis=0), expected):
                raise UsageError(
                    f"{config.base_path}: the {part} images are {images.dtype} of shape {images.shape}; Mini-ImageNet "
                    f"has uint8 of shape {shape}, {per_class} for each label from 0 to {self.n_classes - 1}"
                )
            arrays += [images.transpose(0, 3, 1, 2), labels.astype(np.int64)]
        return RawData(*arrays)

    def names(self, config: Config) -> Sequence[str]:
        """Return the names of a tree's classes; the other layouts have indices."""
        return super().names(config) if _files(Path(config.base_path)) is None else [*map(str, range(self.n_classes))]

    def files(self, config: Config) -> ImageFiles:
        """Return the files of the tree."""
        return list_images(Path(config.base_path) / TREE)


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


@cache
def _file_digest(path: Path, _changed: int) -> str:
    """Read the file once in a process: a sweep asks for the digest for every run."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_arrays(files: list[Path]) -> RawData:
    arrays = []
    for path in files:
        try:
            arrays.append(np.load(path, allow_pickle=False))
        except Exception as error:  # a damaged header can raise almost anything
            raise UsageError(f"{path} is not a readable npy file: {error}") from error
    return RawData(*arrays)


def read_pickles(files: list[Path], n_train: int, n_test: int) -> RawData:
    """Return the classes of all three files, labelled by sorted synset."""
    images_of: dict[str, np.ndarray] = {}
    for path in files:
        content = load_numpy_pickle(path)
        try:
            images = np.asarray(content["image_data"])
            images_of |= {str(synset): images[np.asarray(rows)] for synset, rows in content["class_dict"].items()}
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise UsageError(f"{path} does not hold image_data and class_dict: {error!r}") from error
    shapes = {images.shape for images in images_of.values()}
    if len(shapes) != 1 or min(shapes)[0] < n_train + n_test:
        raise UsageError(
            f"{files[0].parent}: classes have images of the shapes {sorted(shapes)}; all need the same, "
            f"{n_train + n_test} images"
        )
    labels, parts = np.arange(len(images_of)), (slice(n_train), slice(-n_test, None))
    train, test = (np.concatenate([images_of[synset][part] for synset in sorted(images_of)]) for part in parts)
    return RawData(train, labels.repeat(n_train), test, labels.repeat(n_test))
