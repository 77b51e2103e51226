"""`seq-mnist`: Split MNIST, 5 tasks of 2 digits. Its settings are ours: the paper does not have it."""

from typing import Any

from datasets.dataset import BASE_PATH, SPLIT_OPTIONS, ClassDataset
from datasets.mnist import Mnist
from utils.config.options import Rule
from utils.config.registry import DATASETS

_RULES = (
    Rule({"n_tasks": 5, "buffer_size": 500, "lr": 0.03}),
    Rule({"alpha": 1.0, "beta": 0.5}, when={"model": "derpp"}),
)
SETTINGS: dict[str, Any] = {"options": (BASE_PATH, *SPLIT_OPTIONS), "rules": _RULES, "backbone": "mlp"}


@DATASETS.register("seq-mnist", help="Split MNIST, 5 x 2 digits", **SETTINGS)
class SeqMnist(Mnist, ClassDataset):
    name = "seq-mnist"
