"""`perm-mnist`: Permuted MNIST, 20 tasks that share the ten digits, each with a permutation of the pixels (Table 9).

The first task is permuted too, as is common; to a network without convolutions it makes no difference.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from datasets.dataset import BASE_PATH, DOMAIN_OPTIONS, Config, DomainDataset
from datasets.mnist import Mnist
from utils.config.options import Rule, SameAs
from utils.config.registry import DATASETS
from utils.data.random import generator
from utils.device import to_device

# Settings of Domain-IL on MNIST, permuted or rotated.
_RULES = (
    Rule({"n_tasks": 20, "buffer_size": 500, "lr": 0.2, "batch_size": 128, "minibatch_size": SameAs("batch_size")}),
    Rule({"alpha": 1.0, "beta": 0.5}, when={"model": "derpp"}),
)
SETTINGS: dict[str, Any] = {"options": (BASE_PATH, *DOMAIN_OPTIONS), "rules": _RULES, "backbone": "mlp"}


class Permuted(DomainDataset):
    """Every task, including the first, has its own permutation, which depends on the seed and the task alone."""

    def transform(self, task: int, config: Config) -> Callable[[torch.Tensor], torch.Tensor]:
        pixels = math.prod(self.image_shape)
        return partial(permuted, order=generator(config.seed, "permutation", task).permutation(pixels))


def permuted(images: torch.Tensor, order: np.ndarray) -> torch.Tensor:
    """Return images whose pixel k is pixel `order[k]` of the given ones."""
    return images.flatten(1).index_select(1, to_device(order, images.device)).view(images.shape)


@DATASETS.register("perm-mnist", help="Permuted MNIST, 20 tasks of all ten digits", **SETTINGS)
class PermMnist(Mnist, Permuted):
    name = "perm-mnist"
