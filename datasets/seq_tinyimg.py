"""`seq-tinyimg`: Split Tiny-ImageNet, 10 tasks of 20 classes, 64x64 pixels, 500 training and 50 test images a class.

Read from the layout that it is published in, `tiny-imagenet-200/` below --base_path or --base_path itself: `wnids.txt`
with the classes in their order, `train/<class>/images/*`, `val/images/*`, and `val/val_annotations.txt` with the class
of each; or `val/<class>/*`, as many sort them, which gives the same run. The validation images are the test set, since
the published test images have no labels. All are decoded once. Settings are ours: the paper does not have it.
"""

from pathlib import Path

from datasets.dataset import Config
from datasets.image_cache import CACHED_OPTIONS, CachedImages
from datasets.image_files import ImageFiles, files_by_label, find_root, images_in
from utils.config.options import Rule
from utils.config.registry import DATASETS
from utils.data.augment import Crop, Flip
from utils.errors import DataMissing, UsageError

FOLDER = "tiny-imagenet-200"
CLASSES, ANNOTATIONS = "wnids.txt", "val/val_annotations.txt"
RULES = (
    Rule({"n_tasks": 10, "buffer_size": 2000, "lr": 0.03}),
    Rule({"alpha": 0.1, "beta": 0.5}, when={"model": ("derpp", "derpp_lider")}),
)


@DATASETS.register(
    "seq-tinyimg",
    help="Split Tiny-ImageNet, 10 x 20 classes, from the user's files",
    options=CACHED_OPTIONS,
    rules=RULES,
)
class SeqTinyImageNet(CachedImages):
    name = "seq-tinyimg"
    n_classes, images_per_class = 200, (500, 50)
    image_shape = (3, 64, 64)
    mean, std = (0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821)
    augmentation = (Crop(padding=4), Flip())

    def files(self, config: Config) -> ImageFiles:
        layout = f"{CLASSES}, train/<class>/images/*, val/images/* and {ANNOTATIONS}"
        root = find_root(Path(config.base_path), FOLDER, [CLASSES], layout)
        classes = (root / CLASSES).read_text().split()
        train = [images_in(_with_images(root / "train" / name)) for name in classes]
        if (root / "val/images").is_dir():
            test = _validation_images(root, classes)
        else:
            layout = layout.replace(f"val/images/* and {ANNOTATIONS}", "val/<class>/*")
            test = [images_in(_with_images(root / "val" / name)) for name in classes]
        train_files, test_files = files_by_label(root, train), files_by_label(root, test)
        return ImageFiles(root, classes, train_files, test_files, layout, published_name=_published_name)


def _with_images(folder: Path) -> Path:
    return folder / "images" if (folder / "images").is_dir() else folder


def _published_name(name: bytes) -> bytes:
    part, class_name, *_, file = name.split(b"/")
    return b"/".join([part, class_name, b"images", file] if part == b"train" else [part, b"images", file])


def _validation_images(root: Path, classes: list[str]) -> list[list[Path]]:
    """Return the validation images of every class, sorted by file name."""
    images, annotations = {path.name: path for path in images_in(root / "val/images")}, root / ANNOTATIONS
    if not annotations.is_file():
        raise DataMissing(f"{root} has val/images, but not {ANNOTATIONS}; add it, or sort the images into val/<class>/")
    images_of: dict[str, list[Path]] = {name: [] for name in classes}
    for number, line in enumerate(annotations.read_text().splitlines(), 1):
        image, name = (*line.split(), "", "")[:2]
        if name not in images_of:
            raise UsageError(f"{annotations}, line {number}: {name!r} is not one of the classes in {CLASSES}")
        if image not in images:
            raise UsageError(f"{annotations}, line {number}: {image!r} is not in val/images, or listed twice")
        images_of[name].append(images.pop(image))
    return [sorted(paths) for paths in images_of.values()]
