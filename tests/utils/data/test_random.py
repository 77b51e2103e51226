"""Addressed randomness: the same address always gives the same draws, another address gives others."""

import numpy as np
import pytest
from scipy import stats

from utils.data.random import class_order, generator, torch_seed


def test_an_address_is_repeatable_whatever_else_was_drawn():
    first = generator(1, "replay", 5).random(10)
    generator(1, "replay", 4).random(1000)
    np.random.default_rng(0).random(3)
    assert np.array_equal(generator(1, "replay", 5).random(10), first)
    assert np.array_equal(generator(1, "replay", 5).random(4), first[:4])


@pytest.mark.parametrize(
    "other",
    [(2, "replay", 5, 3), (1, "replay2", 5, 3), (1, "replay", 6, 3), (1, "replay", 5, 4), (1, "replay", 3, 5)],
    ids=["seed", "stream", "first place", "second place", "places swapped"],
)
def test_another_address_gives_other_draws(other):
    assert not np.intersect1d(generator(1, "replay", 5, 3).random(1000), generator(*other).random(1000)).size


def test_seed_and_stream_cannot_be_confused():
    assert not np.array_equal(generator(1, "2/a", 0).random(4), generator(12, "a", 0).random(4))
    assert not np.array_equal(generator(1, "1/a", 0).random(4), generator(11, "/a", 0).random(4))


def test_neighbouring_steps_are_independent():
    draws = np.array([generator(0, "augment/current", step).random(2) for step in range(20_000)])
    assert stats.kstest(draws[:, 0], "uniform").pvalue > 1e-3
    assert stats.pearsonr(draws[:-1, 0], draws[1:, 0]).pvalue > 1e-3
    assert stats.pearsonr(draws[:, 0], draws[:, 1]).pvalue > 1e-3


def test_torch_seed_depends_on_seed_and_stream():
    seeds = {torch_seed(seed, stream) for seed in range(50) for stream in ("init", "other")}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert torch_seed(3, "init") == torch_seed(3, "init")


def test_class_order_by_value():
    assert class_order(1, 10).tolist() == [2, 8, 9, 5, 7, 1, 4, 6, 0, 3]
    assert class_order(2, 10).tolist() == [3, 0, 2, 5, 4, 1, 8, 6, 9, 7]
