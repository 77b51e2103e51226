"""Domain-incremental data whose tasks see the same pixels in different places."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from datasets.dataset import Config, DomainDataset
from utils.data.random import generator
from utils.device import to_device


class Permuted(DomainDataset):
    """Every task, including the first, has its own permutation, which depends on the seed and the task alone."""

    def transform(self, task: int, config: Config) -> Callable[[torch.Tensor], torch.Tensor]:
        pixels = math.prod(self.image_shape)
        return partial(permuted, order=generator(config.seed, "permutation", task).permutation(pixels))


def permuted(images: torch.Tensor, order: np.ndarray) -> torch.Tensor:
    """Return images whose pixel k is pixel `order[k]` of the given ones."""
    return images.flatten(1).index_select(1, to_device(order, images.device)).view(images.shape)
