"""`seq-digits`: what its constants claim of scikit-learn's digits, and how a class split becomes a stream."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from datasets.seq_digits import IMAGES_PER_DIGIT, SeqDigits
from utils.config.resolve import resolve


def config(**flags):
    return resolve({"model": "sgd", "dataset": "seq-digits", **flags})


def stream(**flags):
    options = config(**flags)
    dataset = SeqDigits()
    return dataset.stream(options, dataset.spec(options))


def task_data(result, part, task):
    """All samples of a task."""
    return result.task_data(task) if part == "train" else next(result.test(task, 10**6))


def test_sizes_of_the_classes_are_those_of_the_files():
    raw = SeqDigits().read(config())
    train, test = (np.bincount(labels) for labels in (raw.train_labels, raw.test_labels))
    assert (train + test).tolist() == IMAGES_PER_DIGIT.tolist()
    claimed_train, claimed_test = SeqDigits().class_sizes(config())
    assert train.tolist() == claimed_train.tolist()
    assert test.tolist() == claimed_test.tolist() == [36, 37, 36, 37, 37, 37, 37, 36, 35, 36]


def test_images_are_the_digits_doubled_in_size():
    raw, digits = SeqDigits().read(config()), load_digits()
    assert raw.train_images.dtype == raw.test_images.dtype == np.uint8
    assert raw.train_images.shape[1:] == raw.test_images.shape[1:] == (1, 16, 16)
    first_test = digits.images[np.flatnonzero(digits.target == raw.test_labels[0])[0]]
    assert np.array_equal(raw.test_images[0, 0, ::2, ::2], np.round(first_test / 16 * 255))
    for shifted in (raw.test_images[:, :, 1::2, ::2], raw.test_images[:, :, ::2, 1::2]):
        assert np.array_equal(shifted, raw.test_images[:, :, ::2, ::2])


def test_mean_and_std_are_those_of_the_training_images():
    images = SeqDigits().read(config()).train_images / 255
    assert images.mean() == pytest.approx(SeqDigits.mean[0], abs=1e-3)
    assert images.std() == pytest.approx(SeqDigits.std[0], abs=1e-3)


@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize("n_tasks", [2, 5, 10])
def test_tasks_have_classes_of_their_own(seed, n_tasks):
    result = stream(seed=seed, n_tasks=n_tasks)
    per_task = 10 // n_tasks
    assert len(result.train_sizes) == result.spec.n_tasks == n_tasks
    assert tuple(result.train_sizes) == result.spec.train_sizes
    for task in range(n_tasks):
        own = list(range(task * per_task, (task + 1) * per_task))
        for part, sizes in (("train", result.spec.train_sizes), ("test", result.spec.test_sizes)):
            split = task_data(result, part, task)
            assert split.labels.unique().tolist() == own
            assert split.labels.tolist() == split.labels_host.tolist()
            assert split.tasks.tolist() == split.tasks_host.tolist() == [task] * sizes[task]
            assert len(split) == len(split.images) == sizes[task]
