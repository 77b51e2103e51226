"""`seq-miniimg`: Split Mini-ImageNet, 20 tasks of 5 classes, 84x84 pixels, 500 training and 100 test images a class.

The user's files, in `MiniImageNet/` below --base_path or in --base_path, are four arrays `{train,test}_{x,y}.npy`
(uint8, NHWC), images `{train,test}/<class>/*`, or what few-shot learning splits into 64, 16 and 20 classes: images
`{train,val,test}/<class>/*` or the three pickles `mini-imagenet-cache-{train,val,test}.pkl`. Of these, the first 500
images of every class are for training and the last 100 for testing. Labels follow the sorted names of classes. The same
images in the same order are the same run in every layout.
"""

import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from datasets.dataset import Config, RawData, content_digest
from datasets.image_cache import CACHED_OPTIONS, CachedImages, Content
from datasets.image_files import ImageFiles, files_by_label, find_root, images_in, list_images, subfolders
from datasets.numpy_pickle import load_numpy_pickle
from utils.config.options import ByFidelity, Rule
from utils.config.registry import DATASETS
from utils.data.augment import Crop, Flip
from utils.data.file_stream import Files
from utils.errors import DataMissing, UsageError

ARRAYS = ("train_x.npy", "train_y.npy", "test_x.npy", "test_y.npy")
TREE = "MiniImageNet"
PICKLES = tuple(f"mini-imagenet-cache-{part}.pkl" for part in ("train", "val", "test"))
RULES = (
    Rule({"n_tasks": 20, "buffer_size": 2000, "lr": 0.1, "lambd": 1e-3}),
    Rule({"lambd": 1e-5}, when={"penalty_norm": "sum"}),
    Rule({"alpha": 0.3, "beta": 0.8}, when={"model": ("derpp", "derpp_lider")}),
    # The released code decays at epoch 35 (60 and 75 lie past the last) and never undoes it.
    Rule({"lr_milestones": (35, 60, 75), "lr_factor": 0.2}, when={"scenario": "offline"}),
    Rule({"lr_restart": ByFidelity(official="never", paper="task")}, when={"scenario": "offline"}),
)


@DATASETS.register(
    "seq-miniimg",
    help="Split Mini-ImageNet, 20 x 5 classes, from the user's files",
    options=CACHED_OPTIONS,
    rules=RULES,
)
class SeqMiniImageNet(CachedImages):
    name = "seq-miniimg"
    n_classes = 100
    images_per_class: tuple[int, int] = (500, 100)
    image_shape = (3, 84, 84)
    mean, std = (0.47313006, 0.44905752, 0.40378186), (0.27292014, 0.26559181, 0.27953038)
    augmentation = (Crop(padding=4), Flip())
    fingerprint_of_pixels = True

    def names(self, config: Config) -> Sequence[str]:
        return self.cached_content(config).classes

    def files(self, config: Config) -> ImageFiles:
        base_path = Path(config.base_path)
        roots = (base_path, base_path / TREE)
        for names, root in product((ARRAYS, PICKLES), roots):
            if all((root / name).is_file() for name in names):
                whole = Files(np.array([*map(os.fsencode, names)]), np.zeros(len(names), np.int64))
                return ImageFiles(root, (), whole, Files(whole.names[:0], whole.labels[:0]), ", ".join(names))
        for names, root in product((ARRAYS, PICKLES), roots):
            missing = [name for name in names if not (root / name).is_file()]
            if len(missing) < len(names) and not any((root / "train").is_dir() for root in roots):
                raise DataMissing(f"{root} has some files of Mini-ImageNet, but not {', '.join(missing)}; add the rest")
        layouts = (", ".join(ARRAYS), ", ".join(PICKLES), "train/<class>/* and test/<class>/*")
        root = find_root(base_path, TREE, ["train"], "; or ".join(layouts))
        parts = {part: subfolders(root / part) for part in ("train", "val", "test")}
        classes = sorted(name for names in parts.values() for name in names)
        if not all(parts.values()) or len({*classes}) < len(classes):
            return list_images(root)
        part_of = {name: part for part, names in parts.items() for name in names}
        n_train, _ = self.images_per_class
        images = [images_in(root / part_of[name] / name) for name in classes]
        spans = slice(n_train), slice(n_train, None)
        train, test = (files_by_label(root, [group[span] for group in images]) for span in spans)
        return ImageFiles(root, classes, train, test, "{train,val,test}/<class>/*, each class in one of them")

    def decode(self, config: Config) -> Content:
        files = self.listed_files(config)
        if files.classes:
            return super().decode(config)
        is_arrays = files.train.names[0] == ARRAYS[0].encode()
        raw, classes = self._read_arrays(files) if is_arrays else self._read_pickles(files)
        return Content(content_digest(raw), classes, raw)

    def _read_arrays(self, files: ImageFiles) -> tuple[RawData, Sequence[str]]:
        arrays: list[np.ndarray] = []
        for name in ARRAYS:
            try:
                arrays.append(np.load(files.root / name, mmap_mode="r", allow_pickle=False))
            except Exception as error:  # a damaged header can raise almost anything
                raise UsageError(f"{files.root / name} is not a readable npy file ({error}); replace it") from error
        results = []
        for index, per_class in zip((0, 2), self.images_per_class, strict=True):
            images, labels = arrays[index : index + 2]
            expected = np.arange(self.n_classes).repeat(per_class)
            shape = (len(expected), *self.image_shape[1:], 3)
            if images.shape != shape or images.dtype != np.uint8:
                what = f"is {images.dtype} of shape {images.shape} instead of uint8 of shape {shape}"
                raise UsageError(f"{files.root / ARRAYS[index]} {what}; replace it")
            if labels.shape != expected.shape or not np.array_equal(np.sort(labels), expected):
                what = f"has shape {labels.shape} instead of {expected.shape}, or not {per_class} of each label"
                raise UsageError(f"{files.root / ARRAYS[index + 1]} {what} from 0 to {self.n_classes - 1}; replace it")
            results += [np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels.astype(np.int64)]
        return RawData(*results), [*map(str, range(self.n_classes))]

    def _read_pickles(self, files: ImageFiles) -> tuple[RawData, Sequence[str]]:
        n_train, n_test = self.images_per_class
        contents = [self._load_pickle(files.root / name) for name in PICKLES]
        classes = sorted(name for _, rows_of in contents for name in rows_of)
        if not len({*classes}) == len(classes) == self.n_classes:
            raise UsageError(f"{files.root}: pickles of {len({*classes})} classes, not {self.n_classes}; replace them")
        train, test = (np.empty((self.n_classes * count, *self.image_shape), np.uint8) for count in (n_train, n_test))
        while contents:
            images, rows_of = contents.pop()  # and let go of them when they are copied
            for name, rows in rows_of.items():
                label = classes.index(name)
                for target, count, chosen in ((train, n_train, rows[:n_train]), (test, n_test, rows[-n_test:])):
                    target[label * count : (label + 1) * count] = images[chosen].transpose(0, 3, 1, 2)
        labels = np.arange(self.n_classes)
        return RawData(train, labels.repeat(n_train), test, labels.repeat(n_test)), classes

    def _load_pickle(self, path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the images of a file, and the rows of every class in them."""
        content, shape, count = load_numpy_pickle(path), (*self.image_shape[1:], 3), sum(self.images_per_class)
        try:
            images = np.asarray(content["image_data"])
            rows_of = {str(name): np.asarray(rows) for name, rows in content["class_dict"].items()}
            is_fit = images.dtype == np.uint8 and images.shape[1:] == shape
            is_fit &= all(rows.ndim == 1 and len(images[rows]) >= count for rows in rows_of.values())
        except Exception as error:  # other content can raise almost anything
            raise UsageError(f"{path} does not hold image_data and class_dict ({error!r}); replace it") from error
        if not is_fit:
            wanted = f"uint8 images of shape (N, {str(shape)[1:]}, and in class_dict {count} rows of each class"
            raise UsageError(f"{path} has {images.dtype} of shape {images.shape}; it needs {wanted}; replace it")
        return images, rows_of
