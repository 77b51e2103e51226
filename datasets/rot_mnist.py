"""`rot-mnist`: Rotated MNIST, 20 tasks that share the ten digits, each rotated by its own angle in [0°, 180°).

The angle depends on the seed and the task alone. Settings are those of `perm-mnist`.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch.nn import functional as F

from datasets.dataset import Config, DomainDataset
from datasets.mnist import SIDE, Mnist
from datasets.perm_mnist import SETTINGS
from utils.config.registry import DATASETS
from utils.data.random import generator
from utils.device import to_device

CHUNK = 1024  # images rotated at a time: intermediate sums take many times their memory
STEPS = 2**8  # fractions of a pixel; weights are products of two such fractions, and sum to 2 ** 16


@DATASETS.register("rot-mnist", help="Rotated MNIST, 20 tasks of all ten digits", **SETTINGS)
class RotMnist(Mnist, DomainDataset):
    name = "rot-mnist"

    def transform(self, task: int, config: Config) -> Callable[[torch.Tensor], torch.Tensor]:
        index, weight = rotation(angle(config.seed, task), SIDE)
        return partial(rotated, index=index, weight=weight)


def angle(seed: int, task: int) -> float:
    """Return the angle of a task in degrees."""
    return float(generator(seed, "angle", task).uniform(0, 180))


def rotation(degrees: float, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a counterclockwise rotation of square images by bilinear interpolation.

    Returns:
        Arrays (4, pixels): the four pixels that each rotated pixel is made of, and their weights. The index after the
        last pixel stands for black, beyond the image.
    """
    turn, middle = np.deg2rad(degrees), (side - 1) / 2
    row, column = np.mgrid[:side, :side].reshape(2, -1)
    up, right = middle - row, column - middle
    column = middle + right * np.cos(turn) + up * np.sin(turn)
    row = middle + right * np.sin(turn) - up * np.cos(turn)
    # Integers, so that every device computes the same values.
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
    """Return images rotated as `rotation` says."""
    indices, weights = to_device(index, images.device), to_device(weight.astype(np.int32), images.device)
    parts = []
    for part in images.split(CHUNK):
        pixels = F.pad(part.flatten(1).t(), (0, 0, 0, 1)).int()  # (pixels, images): whole rows are gathered quickly
        total = torch.zeros_like(pixels[:-1])
        for source, share in zip(indices, weights, strict=True):
            total += pixels.index_select(0, source).mul_(share[:, None])
        parts.append(((total + 2**15) >> 16).to(torch.uint8).t().reshape(part.shape))
    return torch.cat(parts)
