"""Domain-incremental data whose tasks see the same pixels in different places."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch

from datasets.dataset import DomainDataset
from utils.data.random import generator
from utils.device import to_device


class Permuted(DomainDataset):
    """Every task, the first too, has a permutation of its own, which follows from the seed and the task alone."""

    def transform(self, task, config):
        pixels = math.prod(self.image_shape)
        return partial(permuted, order=generator(config.seed, "permutation", task).permutation(pixels))


def permuted(images: torch.Tensor, order: np.ndarray) -> torch.Tensor:
    """Pixel `order[k]` of every image becomes its pixel k."""
    return images.flatten(1).index_select(1, to_device(order, images.device)).view(images.shape)
