"""`seq-imagenet-sub`: 100 classes of ImageNet in 10 tasks, 224x224 pixels (Table 9).

Read from `ImageNet/{train,val}/<synset>/*` below --base_path, or from --base_path itself; its validation images are the
test set. Papers differ in the 100 classes: --class_list names them. The paper has batches of 32, a buffer of 2000, and
kappa and lambda of Split Mini-ImageNet; the rest is Mini-ImageNet's here, and offline nothing decays, which is ours.
"""

from pathlib import Path

import numpy as np

from datasets.dataset import BASE_PATH, SPLIT_OPTIONS, ClassDataset, Config, class_list
from datasets.image_files import ImageFiles, files_by_label, find_root, images_in, subfolders
from datasets.streamed_images import STREAM_OPTIONS, StreamedImages
from utils.config.options import Option, Rule, SameAs
from utils.config.registry import DATASETS
from utils.errors import UsageError

FOLDER = "ImageNet"
ALL_CLASSES, N_CLASSES, SHUFFLE_SEED = 1000, 100, 1993
TRAIN_PER_CLASS, TEST_PER_CLASS = 1300, 50  # of most classes, for a dry run without the images

OPTIONS = (
    BASE_PATH,
    *SPLIT_OPTIONS,
    Option("class_list", class_list, "File with the classes, one synset per line (default: 100 as in other papers)."),
    *STREAM_OPTIONS,
)
RULES = (
    Rule({"n_tasks": 10, "buffer_size": 2000, "lr": 0.1, "lambd": 1e-3}),
    Rule({"lambd": 1e-5}, when={"penalty_norm": "sum"}),
    Rule({"batch_size": 32, "minibatch_size": SameAs("batch_size")}),
    Rule({"alpha": 0.3, "beta": 0.8}, when={"model": ("derpp", "derpp_lider")}),
)


@DATASETS.register(
    "seq-imagenet-sub",
    help="100 classes of ImageNet, 10 x 10, streamed from the user's files",
    options=OPTIONS,
    rules=RULES,
)
class SeqImageNetSub(StreamedImages, ClassDataset):
    name = "seq-imagenet-sub"

    def class_sizes(self, config: Config) -> tuple[np.ndarray, np.ndarray]:
        if self.given_fingerprint:
            count = len(config.class_list or range(N_CLASSES))
            return np.full(count, TRAIN_PER_CLASS), np.full(count, TEST_PER_CLASS)
        return super().class_sizes(config)

    def files(self, config: Config) -> ImageFiles:
        layout = "train/<synset>/*.JPEG and val/<synset>/*.JPEG"
        root = find_root(Path(config.base_path), FOLDER, ["train", "val"], layout)
        classes = list(config.class_list or draw_classes(root))
        for name in classes:
            if classes.count(name) > 1 or "/" in name or not (root / "train" / name).is_dir():
                raise UsageError(f"--class_list: {name[:80]!r} is no class folder in {root / 'train'}, or listed twice")
        train, test = ([images_in(root / part / name) for name in classes] for part in ("train", "val"))
        train_files, test_files, selection = files_by_label(root, train), files_by_label(root, test), config.class_list
        return ImageFiles(
            root, classes, train_files, test_files, layout, labels_in_digest=True, selection=selection and [*selection]
        )


def draw_classes(root: Path) -> list[str]:
    """Return the first 100 of the sorted synsets after a shuffle, as other papers drew them."""
    synsets = np.array(subfolders(root / "train"))
    if len(synsets) != ALL_CLASSES:
        raise UsageError(f"{root / 'train'} has {len(synsets)} classes, not {ALL_CLASSES}; name 100 with --class_list")
    np.random.RandomState(SHUFFLE_SEED).shuffle(synsets)
    return synsets[:N_CLASSES].tolist()
