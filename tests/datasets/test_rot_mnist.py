"""Rotations: by hand for quarters, by brute force and by Pillow for other angles."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from datasets.rot_mnist import CHUNK, RotMnist, angle, rotated, rotation
from utils.config.resolve import resolve


def images(count=3, side=28):
    return torch.from_numpy(np.random.default_rng(2).integers(0, 256, (count, 1, side, side), dtype=np.uint8))


@pytest.mark.parametrize("quarters", [0, 1, 2, 3])
@pytest.mark.parametrize("side", [4, 5, 28])
def test_quarters_move_whole_pixels(quarters, side):
    before = images(side=side)
    after = rotated(before, *rotation(90 * quarters, side))
    assert torch.equal(after, torch.rot90(before, quarters, (2, 3)))
    assert after.dtype == torch.uint8


def by_definition(image, degrees):
    """Every pixel from the place in the image that the turn takes to it, linear between the four pixels around."""
    side, turn = len(image), math.radians(degrees)
    middle, out = (side - 1) / 2, np.zeros((side, side))

    def at(row, column):
        return float(image[row, column]) if 0 <= row < side and 0 <= column < side else 0.0

    for row in range(side):
        for column in range(side):
            x, y = column - middle, middle - row
            u = middle + x * math.cos(turn) + y * math.sin(turn)
            v = middle - (y * math.cos(turn) - x * math.sin(turn))
            left, top = math.floor(u), math.floor(v)
            for k in (0, 1):
                for j in (0, 1):
                    out[row, column] += at(top + k, left + j) * (1 - abs(v - top - k)) * (1 - abs(u - left - j))
    return out


@pytest.mark.parametrize("degrees", [1.0, 30.0, 123.4, 179.99])
def test_other_angles_interpolate(degrees):
    before = images(2)
    after = rotated(before, *rotation(degrees, 28))[:, 0].numpy().astype(float)
    for image, result in zip(before[:, 0].numpy(), after, strict=True):
        difference = result - by_definition(image, degrees)
        assert np.abs(difference).max() < 2.5  # places are rounded to 1/256 of a pixel
        assert abs(difference.mean()) < 0.1
        theirs = np.asarray(Image.fromarray(image).rotate(degrees, Image.Resampling.BILINEAR), dtype=float)
        inside = (slice(6, 22), slice(6, 22))  # Pillow does not fade into what lies beyond
        assert np.abs(result[inside] - theirs[inside]).max() < 4


def test_chunks_change_nothing():
    before = images(CHUNK + 3)
    turn = rotation(50.0, 28)
    after = rotated(before, *turn)
    assert after.shape == before.shape
    assert torch.equal(after[CHUNK - 1 : CHUNK + 2], rotated(before[CHUNK - 1 : CHUNK + 2], *turn))


def test_angles_are_of_the_seed_and_the_task_and_spread_over_half_a_turn():
    angles = [angle(0, task) for task in range(20)]
    assert len(set(angles)) == 20
    assert 0 <= min(angles) < 40
    assert 140 < max(angles) < 180
    assert angle(1, 0) != angles[0]
    transform = RotMnist().transform(4, resolve({"model": "sgd", "dataset": "rot-mnist"}))
    assert torch.equal(transform(images()), rotated(images(), *rotation(angles[4], 28)))
