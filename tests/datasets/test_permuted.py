"""Permutations of pixels, and their embedded data set `perm-digits`."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from datasets.perm_digits import PermDigits
from datasets.perm_mnist import permuted
from utils.config.resolve import resolve
from utils.data.random import generator


def stream(**flags):
    config = resolve({"model": "sgd", "dataset": "perm-digits", **flags})
    dataset = PermDigits()
    return dataset.stream(config, dataset.spec(config))


def test_permutation_by_hand():
    images = torch.arange(12, dtype=torch.uint8).view(2, 1, 2, 3)
    result = permuted(images, np.array([5, 0, 4, 1, 3, 2]))
    assert result.tolist() == [[[[5, 0, 4], [1, 3, 2]]], [[[11, 6, 10], [7, 9, 8]]]]
    assert result.dtype == torch.uint8


@pytest.mark.parametrize("seed", [0, 3])
def test_every_task_has_a_permutation_of_its_own_the_first_too(seed):
    result, places = stream(seed=seed), set()
    plain = result.train_data.images.flatten(1)
    for task in range(20):
        order = generator(seed, "permutation", task).permutation(64)
        assert order.tolist() != list(range(64))
        assert torch.equal(result.task_data(task).images.flatten(1), plain[:, order])
        test = next(result.test(task, 10**6)).images
        assert torch.equal(test.flatten(1), result.test_data.images.flatten(1)[:, order])
        places.add(tuple(order.tolist()))
    assert len(places) == 20


def test_images_are_the_digits_in_their_own_size():
    result, digits = stream(), load_digits()
    both = torch.cat([result.train_data.images, result.test_data.images]).flatten(1).numpy()
    wanted = np.round(digits.images / 16 * 255).astype(np.uint8).reshape(-1, 64)
    assert sorted(map(bytes, both)) == sorted(map(bytes, wanted))
    assert result.spec.train_sizes == (len(result.train_data),) * 20


def test_twin_runs_with_the_network_of_permuted_mnist(run_main):
    finished = run_main("--model", "er", "--norm", "adab2n", "--dataset", "perm-digits", "--n_tasks", "3")
    assert finished.code == 0
    assert finished.record["config"]["backbone"] == "mlp"
    matrix = finished.record["results"]["domain_il"]["matrix"]
    assert all(matrix[task][task] > 85 for task in range(3))
    assert finished.record["results"]["domain_il"]["metrics"]["faa"] > 70
