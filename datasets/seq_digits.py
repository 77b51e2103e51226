"""`seq-digits`: scikit-learn's 1,797 real handwritten digits, 5 tasks of 2; needs no download.

The 8x8 images are doubled to 16x16 so that a ResNet-18's last stage keeps a 2x2 map. Every fifth image of a
digit is a test image. `python main.py --model derpp --norm adab2n --dataset seq-digits` takes about ten seconds
on two CPU cores.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from datasets.dataset import SPLIT_OPTIONS, ClassDataset, Config, Dataset, RawData, content_digest
from utils.config.options import WITHOUT_BOUNDARIES, Rule
from utils.config.registry import DATASETS
from utils.data.augment import Crop
from utils.errors import UsageError

IMAGES_PER_DIGIT = np.array([178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
TEST_EVERY = 5
CONTENT = "fa79709106cda2c4"  # digest of all images and labels


def digits_file() -> Path:
    """Return the table of the installed package without importing it, which would take longer than a short run."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise UsageError("the digits are part of scikit-learn, which is not installed; install it")
    return Path(package.origin).parent / "datasets/data/digits.csv.gz"


class Digits(Dataset):
    """Base class of the data sets of digits."""

    def class_sizes(self, config: Config) -> tuple[np.ndarray, np.ndarray]:
        test = -(-IMAGES_PER_DIGIT // TEST_EVERY)
        return IMAGES_PER_DIGIT - test, test

    def fingerprint(self, config: Config) -> str:
        return CONTENT

    def read(self, config: Config) -> RawData:
        table = np.loadtxt(digits_file(), delimiter=",")
        images = np.round(table[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
        images = images.repeat(2, axis=2).repeat(2, axis=3)
        labels = table[:, -1].astype(np.int64)
        test = np.zeros(len(labels), dtype=bool)
        for digit in range(10):
            test[np.flatnonzero(labels == digit)[::TEST_EVERY]] = True
        raw = RawData(images[~test], labels[~test], images[test], labels[test])
        if content_digest(raw) != CONTENT:
            raise UsageError(f"{digits_file()} does not hold the digits; install scikit-learn again")
        return raw


@DATASETS.register(
    "seq-digits",
    help="scikit-learn's handwritten digits, 5 x 2 classes, embedded",
    options=SPLIT_OPTIONS,
    rules=(
        Rule({"n_tasks": 5, "buffer_size": 200, "num_filters": 32, "lr": 0.01}),
        Rule({"eval_every": 15}, when={"boundary": WITHOUT_BOUNDARIES}),  # ten times
    ),
)
class SeqDigits(Digits, ClassDataset):
    name = "seq-digits"
    image_shape = (1, 16, 16)
    mean, std = (0.3053,), (0.3760,)
    augmentation = (Crop(padding=1),)
