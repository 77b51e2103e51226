"""`seq-folder`: any tree of images `train/<class>/*` and `test/<class>/*` below --base_path.

The images are decoded once, resized and centre-cropped to --image_size, and kept as one tensor in a cache file;
mean and standard deviation come from the training images. EXIF rotation is applied, what is transparent becomes
black, 16-bit shades are scaled to 8 bit, and shades of unknown range (32 bit, floating point) are refused.
Real images without a download:

    python main.py --model er_ace --norm adab2n --dataset seq-folder --base_path photos --n_tasks 5
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from datasets.dataset import BASE_PATH, SPLIT_OPTIONS, RawData
from datasets.image_cache import CACHE_OPTIONS, CachedImages
from datasets.image_files import ImageFiles, decode, list_images
from utils.config.options import Option, Rule, integer
from utils.config.registry import DATASETS
from utils.data.augment import Crop, Flip
from utils.data.stream import StreamSpec

OPTIONS = (
    BASE_PATH,
    *SPLIT_OPTIONS,
    Option("image_size", integer(1, 4096), "width and height in pixels that images are brought to", default=32),
    Option("train_per_class", integer(1), "use only the first so many training images of a class, by file name"),
    Option("test_per_class", integer(1), "use only the first so many test images of a class, by file name"),
    *CACHE_OPTIONS,
)


@DATASETS.register(
    "seq-folder",
    help="a folder of images train/<class>/* and test/<class>/*",
    options=OPTIONS,
    rules=(Rule({"buffer_size": 500, "lr": 0.03}),),
)
class SeqFolder(CachedImages):
    name = "seq-folder"
    augmentation = (Crop(padding=4), Flip())

    def files(self, config) -> ImageFiles:
        return list_images(Path(config.base_path), config.train_per_class, config.test_per_class)

    def decode(self, path: Path, size: int) -> np.ndarray:
        return decode(path, size)

    def class_sizes(self, config):
        files = self.cache(config).files
        return np.array([len(f) for f in files.train]), np.array([len(f) for f in files.test])

    def spec(self, config) -> StreamSpec:
        self.image_shape = (3, config.image_size, config.image_size)
        # Known only once the images have been decoded; `stream` fills them in.
        self.mean = self.std = (0.0, 0.0, 0.0)
        return super().spec(config)

    def stream(self, config, spec: StreamSpec):
        stream = super().stream(config, spec)
        return replace(stream, spec=replace(spec, mean=self.mean, std=self.std))

    def read(self, config) -> RawData:
        raw = super().read(config)
        self.mean, self.std = self.statistics
        return raw
