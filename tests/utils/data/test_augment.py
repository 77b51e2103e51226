"""Augmentation against torchvision's crops, flip and normalization."""

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import functional as T
from torchvision.transforms.v2 import functional as V

from tests.helpers import CPU, make_spec
from utils.data.augment import Augment, Crop, Flip, RandomResizedCrop

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615)
SIDE = 8


def parts_of(padding: int, flip: bool) -> tuple:
    return ((Crop(padding),) if padding else ()) + ((Flip(),) if flip else ())


def make_augment(padding: int, flip: bool, seed: int = 0, dtype=torch.float32) -> Augment:
    spec = make_spec(augmentation=parts_of(padding, flip), mean=MEAN, std=STD)
    return Augment(spec, seed, CPU, dtype)


def random_images(count: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (count, 3, SIDE, SIDE), dtype=np.uint8))


def normalized(images: torch.Tensor) -> torch.Tensor:
    return T.normalize(images.float() / 255, MEAN, STD)


@pytest.mark.parametrize("parts", [(Crop(0),), (Crop(1),), (Crop(4),), (Flip(),), (Crop(4), Flip()), (Flip(), Crop(1))])
def test_every_part_does_the_same_on_the_host_and_on_a_device(parts):
    draw = np.random.default_rng(0)
    on_host = draw.integers(0, 256, (50, 3, 6, 7), dtype=np.uint8)
    on_device = torch.from_numpy(on_host)
    for part in parts:
        drawn = part.draw(draw, 50).astype(np.int64)
        assert drawn.shape == (part.rows, 50)
        assert len(np.unique(drawn)) > 1 or part == Crop(0)
        on_host = part.on_host(on_host, drawn)
        on_device = part.on_device(on_device, torch.from_numpy(drawn))
        assert on_host.dtype == np.uint8
        assert torch.equal(torch.from_numpy(np.ascontiguousarray(on_host)), on_device)


@pytest.mark.parametrize(("part", "values"), [(Crop(4), 9), (Crop(2), 5), (Flip(), 2)])
def test_all_crops_and_flips_are_equally_likely(part, values):
    drawn = part.draw(np.random.default_rng(0), 2000).astype(int)
    for row in drawn:
        counts = np.bincount(row, minlength=values)
        assert len(counts) == values
        assert stats.chisquare(counts).pvalue > 1e-3
    if len(drawn) == 2:
        assert abs(np.corrcoef(drawn)[0, 1]) < 3.3 / np.sqrt(2000)


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_known_draws_are_torchvisions_crop_and_flip(padding):
    draw = np.random.default_rng(0)
    images = torch.from_numpy(draw.integers(0, 256, (50, 3, 6, 7), dtype=np.uint8))
    rows, columns = draw.integers(0, 2 * padding + 1, (2, 50))
    flipped = draw.integers(0, 2, (1, 50))
    result = Flip().on_host(Crop(padding).on_host(images.numpy(), np.stack([rows, columns])), flipped)
    for index, image in enumerate(images):
        crop = T.crop(T.pad(image, padding), rows[index], columns[index], 6, 7)
        assert torch.equal(torch.from_numpy(result[index]), T.hflip(crop) if flipped[0, index] else crop)


def test_draws_are_addressed():
    images = random_images(30)
    first = make_augment(4, True)(images, "current", 5)
    augment = make_augment(4, True)
    augment(images, "current", 4)
    assert torch.equal(augment(images, "current", 5), first)
    assert not torch.equal(augment(images, "current", 6), first)
    assert not torch.equal(augment(images, "replay/labels", 5), first)
    assert not torch.equal(make_augment(4, True, seed=1)(images, "current", 5), first)


def test_normalize_equals_torchvision():
    images = random_images(50)
    assert (make_augment(4, True).normalize(images) - normalized(images)).abs().max() < 1e-6
    double = make_augment(4, True, dtype=torch.float64).normalize(images)
    assert double.dtype == torch.float64
    assert (double - T.normalize(images.double() / 255, MEAN, STD)).abs().max() < 1e-14


def windows(side: int, count: int) -> np.ndarray:
    """(4, count) tops, lefts, heights and widths of windows that fit, the whole image and one pixel among them."""
    draw = np.random.default_rng(0)
    height, width = draw.integers(1, side + 1, (2, count))
    result = np.stack([draw.integers(0, side - height + 1), draw.integers(0, side - width + 1), height, width])
    result[:, 0], result[:, 1] = (0, 0, side, side), (side - 1, 2, 1, 1)
    return result


@pytest.mark.parametrize(("side", "size"), [(40, 35), (20, 33), (32, 8)])
def test_known_windows_are_torchvisions_resized_crop(side, size):
    images = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (60, 3, side, side), dtype=np.uint8))
    part, drawn = RandomResizedCrop(size, side), windows(side, 60)
    on_host, on_device = part.on_host(images.numpy(), drawn), part.on_device(images, torch.from_numpy(drawn))
    assert (on_host.dtype, on_device.dtype) == (np.uint8, torch.uint8)
    expected = torch.stack([
        V.resized_crop(image, *window, [size, size]) for image, window in zip(images, drawn.T.tolist(), strict=True)
    ])  # fmt: skip
    assert torch.equal(torch.from_numpy(on_host), expected)
    difference = (on_device.int() - expected.int()).abs()  # the host has its weights in whole numbers
    assert difference.max() <= 1
    assert difference.float().mean() < 0.025


def test_window_of_the_wanted_size_is_cut_out_and_the_middle_is_tested():
    images = torch.arange(2 * 100, dtype=torch.uint8).view(2, 1, 10, 10)
    part, window = RandomResizedCrop(6, 10), np.array([[1], [3], [6], [6]]).repeat(2, 1)
    assert np.array_equal(part.on_host(images.numpy(), window), images[:, :, 1:7, 3:9])
    assert torch.equal(part.on_device(images, torch.from_numpy(window)), images[:, :, 1:7, 3:9])
    assert torch.equal(part.for_testing(images), T.center_crop(images, 6))
    assert part.shape_of((1, 10, 10)) == (1, 6, 6)


class Tape:
    """Hands out numbers in [0, 1) that are known."""

    def __init__(self, *arrays):
        self.arrays = list(arrays)

    def random(self, shape):
        assert self.arrays[0].shape == tuple(shape)
        return self.arrays.pop(0)

    def uniform(self, low, high, shape):
        return low + (high - low) * self.random(shape)


def window_by_hand(area, aspect, place, side):
    for one, other in zip(area, aspect, strict=True):
        area, ratio = (0.08 + 0.92 * one) * side * side, (3 / 4) * (16 / 9) ** other
        height, width = round((area / ratio) ** 0.5), round((area * ratio) ** 0.5)
        if height <= side and width <= side:
            break
    else:
        height = width = side
    return [int(place[0] * (side - height + 1)), int(place[1] * (side - width + 1)), height, width]


def test_drawn_windows_by_hand():
    draw = np.random.default_rng(0)
    area, aspect, place = draw.random((10, 200)), draw.random((10, 200)), draw.random((2, 200))
    area[0, ::3], aspect[0, ::3] = 0.99, 0.9  # which does not fit
    area[:, 5], aspect[:, 5] = 0.99, 0.05  # nor do any of these
    result = RandomResizedCrop(28, 32).draw(Tape(area, aspect, place), 200)
    expected = [window_by_hand(area[:, k], aspect[:, k], place[:, k], 32) for k in range(200)]
    assert result.T.tolist() == expected
    assert expected[5] == [0, 0, 32, 32]


def test_augment_cuts_for_training_and_for_testing():
    spec = make_spec(image_shape=(3, 8, 8), augmentation=(RandomResizedCrop(6, 8), Flip()), mean=MEAN, std=STD)
    assert spec.input_shape == (3, 6, 6)
    assert make_spec(augmentation=(Crop(4), Flip())).input_shape == (3, 8, 8)
    augment, images = Augment(spec, 0, CPU, torch.float32), random_images(30)
    drawn = augment.draw(30, "current", 5)
    expected = [V.resized_crop(image, *row[:4], [6, 6]) for image, row in zip(images, drawn.T.tolist(), strict=True)]
    flipped = [T.hflip(image) if row[4] else image for image, row in zip(expected, drawn.T, strict=True)]
    assert (augment(images, "current", 5) - normalized(torch.stack(flipped))).abs().max() < 1e-6
    assert (augment.normalize(images) - normalized(T.center_crop(images, 6))).abs().max() < 1e-6
