"""Buffers: what they keep, what they draw, and that a sample's parts stay together."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from tests.helpers import CPU, make_samples, make_spec
from utils.config.registry import BUFFERS
from utils.data.buffer import Buffer, Reservoir
from utils.data.random import generator
from utils.errors import UsageError
from utils.step import Batch

SPEC = make_spec(image_shape=(1, 1, 1), mean=(0.0,), std=(1.0,), n_tasks=3, n_classes=6)


def make_buffer(size: int, mode: str = "reservoir", quota: str = "task", spec=SPEC, logits=False) -> Buffer:
    options = {"ring_quota": quota} if mode == "ring" else {}
    policy = BUFFERS.get(mode).build(size, spec, **options)
    return Buffer(size, policy, spec, CPU, logits_dtype=torch.float32 if logits else None)


def batch_of(images: torch.Tensor, labels: np.ndarray, tasks: np.ndarray, logits=None) -> Batch:
    return Batch(images, torch.from_numpy(labels), torch.from_numpy(tasks), labels, tasks, logits=logits)


def add(buffer: Buffer, numbers, draw, labels=None, tasks=None) -> None:
    """Samples whose single pixel is their number; unless given, labels and tasks follow from it too."""
    numbers = np.asarray(numbers)
    labels = numbers % 6 if labels is None else np.asarray(labels)
    tasks = numbers // 40 if tasks is None else np.asarray(tasks)
    logits = torch.from_numpy(numbers[:, None] + np.arange(6) / 10).float()
    images = torch.from_numpy(numbers.astype(np.uint8)).view(-1, 1, 1, 1)
    buffer.add(batch_of(images, labels, tasks, logits), draw)


def sample_of(buffer: Buffer, count: int, step: int = 0) -> Batch:
    slots = buffer.sample_slots(count, generator(0, "replay", step))
    sample = buffer.gather(slots)
    assert sample.labels.tolist() == sample.labels_host.tolist()
    assert sample.tasks.tolist() == sample.tasks_host.tolist()
    return sample


def drawn(buffer: Buffer, count: int, step: int = 0) -> list[int]:
    return sample_of(buffer, count, step).images.flatten().tolist()


def contents(buffer: Buffer) -> list[int]:
    return sorted(drawn(buffer, 1000))


def fixed(*uniforms: float) -> SimpleNamespace:
    """Stands in for a generator whose uniform draws are known."""
    return SimpleNamespace(random=lambda count: np.array(uniforms[:count]))


def test_reservoir_keeps_every_position_equally_often():
    """Kept positions of a run are a sample without replacement: counts have covariance R p (1 - p) n / (n - 1) times
    the centering matrix, which gives the statistic below n - 1 degrees of freedom."""
    runs, length, size = 3000, 24, 3
    counts = np.zeros(length)
    for run in range(runs):
        buffer = make_buffer(size)
        for step, start in enumerate(range(0, length, 4)):
            add(buffer, np.arange(start, start + 4), generator(run, "buffer", step))
        kept = contents(buffer)
        assert len(set(kept)) == size
        counts[kept] += 1
    share = size / length
    statistic = ((counts - runs * share) ** 2).sum() / (runs * share * (1 - share)) * (length - 1) / length
    assert stats.chi2.sf(statistic, length - 1) > 1e-3


def test_reservoir_slot_rule():
    """After three samples fill three slots, the n-th goes to floor(u n): 2, 3 (none), 0, 2, 7 (none), 2."""
    policy = Reservoir(3, SPEC)
    assert policy.slots(make_samples([0] * 3), fixed(0.9, 0.9, 0.9)).tolist() == [0, 1, 2]
    slots = policy.slots(make_samples([0] * 6), fixed(0.74, 0.6, 0.16, 0.42, 0.875, 0.333))
    assert slots.tolist() == [2, -1, 0, 2, -1, 2]


def test_the_last_write_of_a_batch_wins():
    """Samples 4, 5 and 7 go to slot 1, sample 6 nowhere."""
    buffer = make_buffer(3, logits=True)
    add(buffer, [1, 2, 3], fixed(0.0, 0.0, 0.0))
    add(buffer, [4, 5, 6, 7], fixed(0.3, 0.25, 0.6, 0.2), labels=[3, 4, 5, 2], tasks=[0, 1, 2, 2])
    assert buffer.images.flatten().tolist() == [1, 7, 3]
    assert buffer.labels.tolist() == [1, 2, 3]
    assert buffer.tasks.tolist() == [0, 2, 0]
    assert (buffer.labels_host.tolist(), buffer.tasks_host.tolist()) == ([1, 2, 3], [0, 2, 0])
    assert buffer.logits[:, 0].tolist() == [1, 7, 3]


@pytest.mark.parametrize("mode", ["reservoir", "ring"])
def test_draws_never_hold_an_unfilled_slot_nor_one_twice(mode):
    buffer = make_buffer(9, mode)
    add(buffer, [11, 12, 41, 90, 91], generator(0, "buffer", 0))
    assert len(buffer) == 5
    for step in range(50):
        assert sorted(drawn(buffer, 7, step)) == [11, 12, 41, 90, 91]
        three = drawn(buffer, 3, step)
        assert len(set(three)) == 3
        assert set(three) <= {11, 12, 41, 90, 91}


def test_ring_per_task_keeps_the_newest_of_every_task():
    """Seven slots among three tasks: two each, one is never used."""
    buffer = make_buffer(7, "ring")
    add(buffer, [1, 2, 3], None, tasks=[0, 0, 0])
    add(buffer, [4, 5], None, tasks=[0, 1])
    assert contents(buffer) == [3, 4, 5]
    add(buffer, [6, 7, 8, 9, 10], None, tasks=[1, 1, 1, 2, 1])
    assert contents(buffer) == [3, 4, 8, 9, 10]
    add(buffer, [11, 12], None, tasks=[2, 2])
    assert contents(buffer) == [3, 4, 8, 10, 11, 12]
    assert torch.bincount(sample_of(buffer, 6).tasks).tolist() == [2, 2, 2]


def test_ring_per_class_keeps_the_newest_of_every_class():
    buffer = make_buffer(12, "ring", "class")
    add(buffer, range(60), None)
    assert contents(buffer) == list(range(48, 60))
    assert torch.bincount(sample_of(buffer, 12).labels).tolist() == [2] * 6
    add(buffer, [200, 201, 202], None, labels=[5, 5, 5], tasks=[2, 2, 2])
    assert contents(buffer) == [48, 49, 50, 51, 52, 54, 55, 56, 57, 58, 201, 202]


@pytest.mark.parametrize(("quota", "owners"), [("task", 3), ("class", 6)])
def test_ring_smaller_than_its_owners_is_refused(quota, owners):
    make_buffer(owners, "ring", quota)
    with pytest.raises(UsageError, match=rf"--buffer_size {owners - 1} "):
        make_buffer(owners - 1, "ring", quota)


@pytest.mark.parametrize(("mode", "quota"), [("reservoir", "task"), ("ring", "task"), ("ring", "class")])
def test_labels_tasks_and_logits_belong_to_the_images(mode, quota):
    buffer = make_buffer(18, mode, quota, logits=True)
    for step, start in enumerate(range(0, 120, 8)):
        add(buffer, np.arange(start, start + 8), generator(0, "buffer", step))
    sample = sample_of(buffer, 18)
    numbers = sample.images.flatten().numpy().astype(int)
    assert len(set(numbers)) == 18
    assert sample.labels.tolist() == (numbers % 6).tolist()
    assert sample.tasks.tolist() == (numbers // 40).tolist()
    assert torch.equal(sample.logits, torch.from_numpy(numbers[:, None] + np.arange(6) / 10).float())
    assert sample.images.dtype == buffer.images.dtype == torch.uint8
    assert sorted(buffer.all_samples().images.flatten().tolist()) == sorted(numbers)


@pytest.mark.parametrize("mode", ["reservoir", "ring"])
def test_a_restored_buffer_goes_on_identically(mode):
    def feed(buffer, steps):
        for step in steps:
            add(buffer, np.arange(8 * step, 8 * step + 8), generator(0, "buffer", step))

    whole, restored = (make_buffer(12, mode, logits=True) for _ in range(2))
    feed(whole, range(6))
    restored.load_state_dict(whole.state_dict())
    assert len(restored) == len(whole)
    for steps in (range(0), range(6, 15)):
        feed(whole, steps)
        feed(restored, steps)
        mine, theirs = (sample_of(buffer, 10, step=1) for buffer in (whole, restored))
        assert torch.equal(mine.images, theirs.images)
        assert torch.equal(mine.labels, theirs.labels)
        assert torch.equal(mine.logits, theirs.logits)
        assert mine.tasks.tolist() == theirs.tasks.tolist()
    assert contents(whole) != list(range(12))


def balanced_counts(held: list[int], count: int, step: int = 0, mode: str = "reservoir") -> list[int]:
    """How many samples of each of the three tasks a balanced draw has from a buffer with so many of each."""
    buffer, tasks = make_buffer(60, mode), np.repeat(np.arange(3), held)
    add(buffer, np.arange(len(tasks)), generator(0, "fill"), labels=2 * tasks, tasks=tasks)
    slots = buffer.sample_slots(count, generator(0, "replay", step), balanced=True)
    assert len(set(slots.tolist())) == len(slots) == min(count, sum(held))  # nothing twice
    return np.bincount(buffer.tasks_host[slots], minlength=3).tolist()


@pytest.mark.parametrize("mode", ["reservoir", "ring"])
@pytest.mark.parametrize(
    ("held", "count", "expected"),
    [
        ([18, 6, 9], 9, [3, 3, 3]),
        ([15, 2, 7], 12, [5, 2, 5]),  # all there are of the second
        ([15, 1, 7], 19, [11, 1, 7]),
        ([15, 0, 7], 8, [4, 0, 4]),
        ([4, 1, 2], 30, [4, 1, 2]),
    ],
)
def test_balanced_draws_have_as_many_of_every_task_as_the_buffer_allows(mode, held, count, expected):
    assert balanced_counts(held, count, mode=mode) == expected


def test_what_is_left_over_goes_to_every_task_alike():
    """One of three tasks gets one more, whether it has many samples or few."""
    result = np.array([balanced_counts([30, 5, 10], 7, step) for step in range(900)])
    assert set(map(tuple, result.tolist())) == {(3, 2, 2), (2, 3, 2), (2, 2, 3)}
    assert stats.chisquare((result == 3).sum(0)).pvalue > 1e-3


def test_samples_of_a_task_are_equally_likely():
    buffer = make_buffer(20)
    add(buffer, np.arange(20), generator(0, "fill"), tasks=np.repeat([0, 1], [15, 5]))
    counts = np.zeros(20)
    for step in range(3000):
        counts[buffer.sample_slots(6, generator(0, "replay", step), balanced=True)] += 1
    assert stats.chisquare(counts[:15]).pvalue > 1e-3
    assert counts[:15].sum() == counts[15:].sum() == 9000
