"""`--validation`: a share of every class's training data in place of the test data, the same for every seed."""

import numpy as np
import pytest

from datasets.dataset import RawData, held_out_count, with_validation
from datasets.seq_digits import SeqDigits
from utils.config.resolve import resolve
from utils.errors import UsageError


def raw_data(sizes):
    """Every image holds its own number."""
    labels = np.random.default_rng(0).permutation(np.arange(len(sizes)).repeat(sizes))
    images = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1)
    return RawData(images, labels, np.full((3, 1, 1, 1), 255, dtype=np.uint8), np.array([0, 1, 2]))


def digits(**flags):
    config = resolve({"model": "sgd", "dataset": "seq-digits", **flags})
    return SeqDigits().stream(config, SeqDigits().spec(config))


@pytest.mark.parametrize(
    ("size", "share", "count"), [(100, 0.1, 10), (14, 0.1, 1), (16, 0.1, 2), (7, 0.5, 4), (4, 0.1, 0), (3, 0.99, 3)]
)
def test_share_of_a_class_is_rounded_to_the_nearest_image(size, share, count):
    assert held_out_count(size, share) == count


def test_split_is_made_within_every_class_and_keeps_every_image_once():
    sizes = [20, 34, 50]
    split = with_validation(raw_data(sizes), 0.2)
    assert np.bincount(split.test_labels).tolist() == [4, 7, 10]
    assert np.bincount(split.train_labels).tolist() == [16, 27, 40]
    train, held = set(split.train_images.ravel().tolist()), set(split.test_images.ravel().tolist())
    assert not train & held
    assert train | held == set(range(sum(sizes)))
    labels = raw_data(sizes).train_labels
    assert split.test_labels.tolist() == labels[split.test_images.ravel()].tolist()
    assert split.train_labels.tolist() == labels[split.train_images.ravel()].tolist()


def test_same_images_are_held_out_for_every_seed_and_class_order():
    def contents(split):
        return sorted(bytes(image) for image in split.images.numpy().reshape(len(split), -1))

    first, second = digits(seed=0, validation=0.1), digits(seed=3, validation=0.1)
    assert contents(first.test_data) == contents(second.test_data)
    assert contents(first.train_data) == contents(second.train_data)
    assert next(first.test(0, 10**6)).images.tolist() != next(second.test(0, 10**6)).images.tolist()


def test_stream_reports_on_training_data_only():
    whole, split = digits(), digits(validation=0.1)
    assert sum(split.spec.train_sizes) + sum(split.spec.test_sizes) == sum(whole.spec.train_sizes)
    assert split.spec.test_sizes == (28, 29, 28, 28, 28)
    known = {bytes(image) for image in whole.train_data.images.numpy().reshape(-1, 256)}
    assert all(bytes(image) in known for image in split.test_data.images.numpy().reshape(-1, 256))


def test_share_can_be_left_out_of_training_while_the_test_data_stay():
    whole, split, rest = digits(), digits(validation=0.1), digits(hold_out=0.1)
    assert rest.spec.train_sizes == split.spec.train_sizes
    assert rest.train_data.images.equal(split.train_data.images)
    assert rest.test_data.images.equal(whole.test_data.images)


@pytest.mark.parametrize("share", [0.001, 0.999])
def test_share_that_leaves_a_class_without_data_is_refused(share):
    with pytest.raises(UsageError, match=f"--validation {share}"):
        digits(validation=share)
