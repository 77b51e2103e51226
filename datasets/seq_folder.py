"""`seq-folder`: any tree of images `train/<class>/*` and `test/<class>/*` (or `val/<class>/*`) below --base_path.

The images are decoded once, resized and centre-cropped to --image_size, and kept in a cache. Mean and standard
deviation come from the training images.
"""

from dataclasses import replace
from pathlib import Path

from datasets.dataset import Config
from datasets.image_cache import CACHED_OPTIONS, CachedImages
from datasets.image_files import ImageFiles, find_root, list_images
from utils.config.options import Option, Rule, integer
from utils.config.registry import DATASETS
from utils.data.augment import Crop, Flip
from utils.data.stream import Stream, StreamSpec

OPTIONS = (
    *CACHED_OPTIONS,
    Option("image_size", integer(1, 4096), "Width and height in pixels to which images are resized.", default=32),
    Option("train_per_class", integer(1), "Use only the first N training images of each class, by file name."),
    Option("test_per_class", integer(1), "Use only the first N test images of each class, by file name."),
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
    resize = needs_statistics = True

    def files(self, config: Config) -> ImageFiles:
        root = find_root(Path(config.base_path), "", ["train"], "train/<class>/* and test/<class>/*")
        return list_images(root, config.train_per_class, config.test_per_class)

    def spec(self, config: Config) -> StreamSpec:
        self.image_shape = (3, config.image_size, config.image_size)
        self.mean = self.std = (0.0, 0.0, 0.0)  # `stream` sets them, when the images have been read
        return super().spec(config)

    def stream(self, config: Config, spec: StreamSpec) -> Stream:
        stream = super().stream(config, spec)
        mean, std = map(tuple, self.cached_content(config).statistics)
        return replace(stream, spec=replace(spec, mean=mean, std=std))
