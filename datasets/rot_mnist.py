"""`rot-mnist`: Rotated MNIST, 20 tasks that share the ten digits, each turned by an angle of its own in [0°, 180°).

The angle follows from the seed and the task alone. Settings are those of `perm-mnist`.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch.nn import functional as F

from datasets.dataset import BASE_PATH, DOMAIN_OPTIONS, DomainDataset
from datasets.mnist import SIDE, Mnist
from datasets.perm_mnist import RULES
from utils.config.registry import DATASETS
from utils.data.random import generator
from utils.device import to_device

CHUNK = 1024  # images turned at a time: their sums take many times their memory
STEPS = 2**8  # from one pixel to the next; weights are products of two such shares, and sum to 2 ** 16


@DATASETS.register(
    "rot-mnist",
    help="Rotated MNIST, 20 tasks of all ten digits",
    options=(BASE_PATH, *DOMAIN_OPTIONS),
    rules=RULES,
    backbone="mlp",
)
class RotMnist(Mnist, DomainDataset):
    name = "rot-mnist"

    def transform(self, task, config):
        index, weight = rotation(angle(config.seed, task), SIDE)
        return partial(rotated, index=index, weight=weight)


def angle(seed: int, task: int) -> float:
    """In degrees."""
    return float(generator(seed, "angle", task).uniform(0, 180))


def rotation(degrees: float, side: int) -> tuple[np.ndarray, np.ndarray]:
    """(4, pixels): of which four pixels, and with which weights, every pixel of a square image turned counterclockwise
    about its middle is made. Beyond the image it is black, which stands as one more pixel."""
    turn, middle = np.deg2rad(degrees), (side - 1) / 2
    row, column = np.mgrid[:side, :side].reshape(2, -1)
    up, right = middle - row, column - middle
    column = middle + right * np.cos(turn) + up * np.sin(turn)
    row = middle + right * np.sin(turn) - up * np.cos(turn)
    # Whole numbers, so that every device comes to the same shades.
    row, column = (np.round(place * STEPS).astype(np.int64) for place in (row, column))
    (top, low), (left, far) = np.divmod(row, STEPS), np.divmod(column, STEPS)
    index, weight = [], []
    for down, by_row in ((0, STEPS - low), (1, low)):
        for along, by_column in ((0, STEPS - far), (1, far)):
            y, x = top + down, left + along
            is_inside = (y >= 0) & (y < side) & (x >= 0) & (x < side)
            index.append(np.where(is_inside, y * side + x, side * side))
            weight.append(by_row * by_column)
    return np.stack(index), np.stack(weight)


def rotated(images: torch.Tensor, index: np.ndarray, weight: np.ndarray) -> torch.Tensor:
    index, weight = to_device(index, images.device), to_device(weight.astype(np.int32), images.device)
    return torch.cat([_rotated(part, index, weight) for part in images.split(CHUNK)])


def _rotated(images: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    pixels = F.pad(images.flatten(1).t(), (0, 0, 0, 1)).int()  # (pixels, images): whole rows are picked quickly
    total = sum(pixels.index_select(0, which).mul_(share[:, None]) for which, share in zip(index, weight, strict=True))
    return ((total + 2**15) >> 16).to(torch.uint8).t().reshape(images.shape)
