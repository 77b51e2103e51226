"""Streams in memory: the order of batches, samples that join, tasks trained as one, and what is never copied."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import CPU, make_spec, make_stream, sample_numbers

from utils.data.stream import index_batch, ranges
from utils.step import Batch

SPEC = make_spec(n_tasks=3, n_classes=6, train_sizes=(10, 7, 12), test_sizes=(5, 6, 4))
FIELDS = ("images", "labels", "tasks", "labels_host", "tasks_host")


@pytest.fixture
def stream():
    return make_stream(SPEC)


def same(one: Batch, other: Batch) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in FIELDS)


def numbers(batches) -> list[int]:
    """Of all samples, in their order."""
    return [number for batch in batches for number in sample_numbers(batch.images).tolist()]


def extra_samples(count: int) -> Batch:
    """Samples of other tasks, numbered from 100 on, with labels and tasks that no other sample of `SPEC` has."""
    images = np.zeros((count, *SPEC.image_shape), dtype=np.uint8)
    images[:, :, 0, 0] = 100 + np.arange(count)[:, None]
    labels, tasks = 60 + np.arange(count), 70 + np.arange(count)
    return Batch(torch.from_numpy(images), torch.from_numpy(labels), torch.from_numpy(tasks), labels, tasks)


@pytest.mark.parametrize("task", range(3))
def test_epoch_has_every_sample_of_its_task_once_with_its_label(stream, task):
    batches = list(stream.batches(task, 0, 0))
    size = SPEC.train_sizes[task]
    assert [len(batch) for batch in batches] == [4] * (size // 4) + ([size % 4] if size % 4 else [])
    start, stop = ranges(SPEC.train_sizes)[task]
    assert sorted(numbers(batches)) == list(range(start, stop))
    assert numbers(batches) != list(range(start, stop))
    for batch in batches:
        at = sample_numbers(batch.images)
        assert torch.equal(batch.images, stream.train_data.images[at])
        assert batch.labels.tolist() == batch.labels_host.tolist() == stream.train_data.labels_host[at].tolist()
        assert batch.tasks.tolist() == batch.tasks_host.tolist() == [task] * len(batch)
        assert batch.images.dtype == torch.uint8
        assert batch.labels.dtype == batch.tasks.dtype == torch.int64


@pytest.mark.parametrize("joined", [None, extra_samples(6)], ids=["alone", "joined"])
@pytest.mark.parametrize("together", [False, True])
def test_rest_of_an_epoch_is_the_tail_of_the_whole(stream, joined, together):
    stream = stream.as_single_task() if together else stream
    for task in range(len(stream.train_sizes)):
        whole = list(stream.batches(task, 2, 0, joined))
        assert len(whole) == -(-(stream.train_sizes[task] + (len(joined) if joined else 0)) // 4)
        for first in range(len(whole) + 1):
            rest = list(stream.batches(task, 2, first, joined))
            assert len(rest) == len(whole) - first
            assert all(same(a, b) for a, b in zip(rest, whole[first:], strict=True))


def test_order_is_of_seed_task_and_epoch_alone():
    spec = make_spec(n_tasks=2, train_sizes=(12, 12))
    here, there = make_stream(spec, seed=5), make_stream(spec, seed=5)
    other_seed = replace(here, seed=6)
    orders = {}
    for place in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        torch.manual_seed(sum(place))
        np.random.seed(sum(place))  # noqa: NPY002 (nothing may depend on it)
        orders[place] = numbers(here.batches(*place, 0))
    for place in reversed(orders):
        assert numbers(there.batches(*place, 0)) == orders[place]
    within = [tuple(np.array(orders[place]) - 12 * place[0]) for place in orders]
    within.append(tuple(numbers(other_seed.batches(0, 0, 0))))
    assert len(set(within)) == 5


@pytest.mark.parametrize("epoch", range(3))
def test_joined_samples_come_once_in_every_epoch_as_they_are(stream, epoch):
    joined = extra_samples(6)
    batches = list(stream.batches(1, epoch, 0, joined))
    assert [len(batch) for batch in batches] == [4, 4, 4, 1]
    own = list(range(10, 17))
    assert sorted(numbers(batches)) == own + list(range(100, 106))
    result = {}
    for batch in batches:
        assert batch.labels.tolist() == batch.labels_host.tolist()
        assert batch.tasks.tolist() == batch.tasks_host.tolist()
        at = sample_numbers(batch.images).tolist()
        result |= dict(zip(at, zip(batch.labels.tolist(), batch.tasks.tolist(), strict=True), strict=True))
    assert {number: result[number] for number in range(100, 106)} == {100 + k: (60 + k, 70 + k) for k in range(6)}
    assert {number: result[number] for number in own} == {n: (int(stream.train_data.labels_host[n]), 1) for n in own}


def test_merged_stream_trains_all_tasks_as_one(stream):
    as_single_task = stream.as_single_task()
    assert as_single_task.train_sizes == [29]
    assert stream.train_sizes == [10, 7, 12]
    batches = list(as_single_task.batches(0, 0, 0))
    assert sorted(numbers(batches)) == list(range(29))
    assert {task for batch in batches for task in batch.tasks_host.tolist() + batch.tasks.tolist()} == {0}
    for batch in batches:
        assert batch.labels.tolist() == stream.train_data.labels_host[sample_numbers(batch.images)].tolist()
    assert numbers(as_single_task.in_order(0, 5)) == list(range(29))


@pytest.mark.parametrize("together", [False, True])
def test_rows_replace_the_order_of_the_data(stream, together):
    """Batches of shuffled data with the rows that undo it are those of the data in order; nothing else is moved."""
    draw, shuffled, rows = np.random.default_rng(1), {}, {}
    for part in ("train", "test"):
        data = getattr(stream, f"{part}_data")
        rows[f"{part}_rows"] = order = draw.permutation(len(data))
        place = np.argsort(order)
        shuffled[f"{part}_data"] = index_batch(data, place)
    other = replace(stream, **shuffled, **rows)
    if together:
        stream, other = stream.as_single_task(), other.as_single_task()
    for task in range(len(stream.train_sizes)):
        for extra in (None, extra_samples(3)):
            pairs = zip(stream.batches(task, 1, 1, extra), other.batches(task, 1, 1, extra), strict=True)
            assert all(same(*pair) for pair in pairs)
        assert all(same(*pair) for pair in zip(stream.in_order(task, 3), other.in_order(task, 3), strict=True))
    for task in range(3):
        assert all(same(*pair) for pair in zip(stream.test(task, 4), other.test(task, 4), strict=True))
    assert other.to(CPU).train_data.images.data_ptr() == shuffled["train_data"].images.data_ptr()


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_in_order_and_test_go_through_a_task_as_it_lies(stream, size):
    for task in range(3):
        for batches, data, sizes in (
            (list(stream.in_order(task, size)), stream.train_data, SPEC.train_sizes),
            (list(stream.test(task, size)), stream.test_data, SPEC.test_sizes),
        ):
            start, stop = ranges(sizes)[task]
            assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
            assert 0 < len(batches[-1]) <= size
            assert torch.equal(torch.cat([batch.images for batch in batches]), data.images[start:stop])
            assert torch.cat([batch.labels for batch in batches]).tolist() == data.labels[start:stop].tolist()
            assert np.concatenate([batch.labels_host for batch in batches]).tolist() == data.labels[start:stop].tolist()
            assert all(set(batch.tasks_host.tolist()) == set(batch.tasks.tolist()) == {task} for batch in batches)


def test_tasks_are_views_of_one_tensor(stream):
    train, test = stream.train_data.images, stream.test_data.images
    for task in range(3):
        for batch in stream.in_order(task, 3):
            assert batch.images.untyped_storage().data_ptr() == train.untyped_storage().data_ptr()
        for batch in stream.test(task, 3):
            assert batch.images.untyped_storage().data_ptr() == test.untyped_storage().data_ptr()
    as_single_task = stream.as_single_task()
    assert as_single_task.task_data(0).images.data_ptr() == train.data_ptr()
    assert stream.to(CPU).train_data.images.data_ptr() == train.data_ptr()
