"""`seq-fashion`: Split Fashion-MNIST, 5 tasks of 2 classes. Its settings are those of `seq-mnist`."""

import numpy as np

from datasets.dataset import ClassDataset, Config, Dataset, RawData, by_content
from datasets.mnist import Mnist
from datasets.seq_mnist import SETTINGS
from utils.config.registry import DATASETS
from utils.errors import UsageError

TRAIN_PER_CLASS, TEST_PER_CLASS = 6000, 1000


@DATASETS.register("seq-fashion", help="Split Fashion-MNIST, 5 x 2 classes", **SETTINGS)
class SeqFashion(Mnist, ClassDataset):
    name = "seq-fashion"
    torchvision_name = "FashionMNIST"

    def class_sizes(self, config: Config) -> tuple[np.ndarray, np.ndarray]:
        return np.full(self.n_classes, TRAIN_PER_CLASS), np.full(self.n_classes, TEST_PER_CLASS)

    def names(self, config: Config) -> list[str]:
        return ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]

    def fingerprint(self, config: Config) -> str:
        return Dataset.fingerprint(self, config)

    def read(self, config: Config) -> RawData:
        files, raw = self.read_files(config)
        for path, (_, labels), sizes in zip(files[1::2], raw.splits, self.class_sizes(config), strict=True):
            if not np.array_equal(np.bincount(labels), sizes):
                raise UsageError(f"{path} must have {sizes[0]} of each of {len(sizes)} labels, as Fashion-MNIST has")
        return by_content(raw)
