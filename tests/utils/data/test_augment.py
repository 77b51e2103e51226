"""Augmentation against torchvision's crop, flip and normalization."""

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import functional as T

from utils.data.stream import Augmentation
from tests.helpers import CPU, make_spec
from utils.data.augment import Augment, _pick_at_once, _pick_one_by_one

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615)
SIDE = 8


def make_augment(padding: int, flip: bool, seed: int = 0, dtype=torch.float32) -> Augment:
    spec = make_spec(augmentation=Augmentation(padding, flip), mean=MEAN, std=STD)
    return Augment(spec, seed, CPU, dtype)


def random_images(count: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (count, 3, SIDE, SIDE), dtype=np.uint8))


def normalized(images: torch.Tensor) -> torch.Tensor:
    return T.normalize(images.float() / 255, MEAN, STD)


def possible_outcomes(image: torch.Tensor, padding: int, flip: bool) -> dict[tuple[int, int, bool], torch.Tensor]:
    padded = T.pad(image, padding)
    outcomes = {}
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            crop = T.crop(padded, top, left, SIDE, SIDE)
            outcomes[top, left, False] = normalized(crop)
            if flip:
                outcomes[top, left, True] = normalized(T.hflip(crop))
    return outcomes


def drawn_outcomes(image: torch.Tensor, padding: int, flip: bool, count: int) -> list[tuple[int, int, bool]]:
    """Which crop and flip each of `count` copies of an image got; every copy must match exactly one."""
    outputs = make_augment(padding, flip)(image.expand(count, -1, -1, -1), "current", 0)
    found: list[tuple[int, int, bool] | None] = [None] * count
    for key, outcome in possible_outcomes(image, padding, flip).items():
        for index in torch.nonzero((outputs - outcome).abs().amax((1, 2, 3)) < 1e-6).flatten().tolist():
            assert found[index] is None
            found[index] = key
    assert None not in found
    return found


@pytest.mark.parametrize(("padding", "flip"), [(4, True), (4, False), (2, True), (0, True)])
def test_every_output_is_a_crop_and_flip_and_all_are_equally_likely(padding, flip):
    found = np.array(drawn_outcomes(random_images(1)[0], padding, flip, count=2000))
    for axis in (0, 1):
        counts = np.bincount(found[:, axis], minlength=2 * padding + 1)
        assert len(counts) == 2 * padding + 1
        assert counts.min() > 0
        if padding:
            assert stats.chisquare(counts).pvalue > 1e-3
    flips = found[:, 2].sum()
    if flip:
        assert stats.binomtest(int(flips), 2000, 0.5).pvalue > 1e-3
    else:
        assert flips == 0
    if padding and flip:
        pairs = found[:, 0] * (2 * padding + 1) + found[:, 1]
        assert abs(np.corrcoef(found[:, 0], found[:, 1])[0, 1]) < 3.3 / np.sqrt(2000)
        assert len(np.unique(pairs)) == (2 * padding + 1) ** 2


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_picking_one_by_one_and_at_once_are_the_same(padding):
    draw = np.random.default_rng(0)
    images = torch.from_numpy(draw.integers(0, 256, (50, 3, 6, 7), dtype=np.uint8))
    rows, columns = draw.integers(0, 2 * padding + 1, (2, 50))
    flipped = draw.random(50) < 0.5
    one_by_one, at_once = (pick(images, padding, rows, columns, flipped) for pick in (_pick_one_by_one, _pick_at_once))
    assert torch.equal(one_by_one, at_once)


def test_samples_of_a_batch_keep_their_places():
    images = random_images(20)
    outputs = make_augment(4, True)(images, "current", 3)
    for image, output in zip(images, outputs, strict=True):
        distances = [(output - outcome).abs().max().item() for outcome in possible_outcomes(image, 4, True).values()]
        assert min(distances) < 1e-6


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


def test_without_padding_and_flip_images_are_only_normalized():
    augment, images = make_augment(0, False), random_images(10)
    assert torch.equal(augment(images, "current", 0), augment.normalize(images))


def test_images_are_left_as_they_were():
    images = random_images(10)
    before = images.clone()
    make_augment(4, True)(images, "current", 0)
    assert torch.equal(images, before)
