"""The policies of GDumb (greedy balance), iCaRL (all is replaced) and `class_balanced`, by hand and over streams."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from tests.helpers import CPU, make_spec
from utils.data.buffer import Buffer, GreedyBalance, MethodManaged, Reservoir
from utils.data.class_balanced import ClassBalanced
from utils.data.random import generator
from utils.errors import RunFailed
from utils.step import Batch

SPEC = make_spec(image_shape=(1, 1, 1), mean=(0.0,), std=(1.0,), n_tasks=3, n_classes=6)


class Chooser:
    """Stands in for a generator: picks the options at known places, and keeps what it was offered."""

    def __init__(self, *places: int):
        self.places, self.offered = list(places), []

    def choice(self, options):
        self.offered.append(list(options))
        return options[self.places.pop(0)]


NOBODY = SimpleNamespace()  # a generator that must not be asked


def slots_of(policy, labels, draw=NOBODY) -> list[int]:
    labels = np.array(labels)
    return policy.slots(samples(labels, labels), draw).tolist()


def samples(numbers, labels) -> Batch:
    """Their single pixel is their number."""
    images = torch.from_numpy(np.asarray(numbers).astype(np.uint8)).view(-1, 1, 1, 1)
    labels = np.asarray(labels)
    return Batch(images, torch.from_numpy(labels), torch.from_numpy(labels // 2), labels, labels // 2)


def buffer_with(policy, size: int) -> Buffer:
    return Buffer(size, policy, SPEC, CPU)


def held(buffer: Buffer) -> list[tuple[int, int]]:
    """(number, label) of all samples, in the order of their slots."""
    whole = buffer.all_samples()
    assert whole.labels.tolist() == whole.labels_host.tolist()
    assert whole.tasks.tolist() == whole.tasks_host.tolist() == (whole.labels_host // 2).tolist()
    return list(zip(whole.images.flatten().tolist(), whole.labels.tolist(), strict=True))


def test_a_class_below_its_share_takes_a_place_of_the_largest_class():
    """Of four slots class 1 is due two. Class 2 is due 4/3, so it stays below with one and gets two: the first from
    class 0, the lower of two that are largest, the second from class 1."""
    policy = GreedyBalance(4, SPEC)
    slots_of(policy, [0, 0, 0, 0])
    draw = Chooser(2, 0)
    assert slots_of(policy, [1, 1, 1], draw) == [2, 0, -1]
    assert draw.offered == [[0, 1, 2, 3], [0, 1, 3]]
    draw = Chooser(1, 0)
    assert slots_of(policy, [2, 2, 2], draw) == [3, 0, -1]
    assert draw.offered == [[1, 3], [0, 2]]
    assert policy.counts.tolist() == [1, 1, 2, 0, 0, 0]
    assert policy.owners.tolist() == [2, 0, 1, 2]
    draw = Chooser(1)
    assert slots_of(policy, [0], draw) == [3]  # below its share again
    assert draw.offered == [[0, 3]]


def test_a_sample_may_push_out_one_of_its_own_batch():
    """The only slot takes samples 4, 5 and 6 one after the other: the last one is written."""
    buffer = buffer_with(GreedyBalance(1, SPEC), 1)
    draw = Chooser(0, 0)
    buffer.add(samples([4, 5, 6], [0, 1, 2]), draw)
    assert draw.offered == [[0], [0]]
    assert held(buffer) == [(6, 2)]


def random_stream(seed: int):
    """Thirty samples of each class, two classes at a time, in small batches."""
    dice, number = np.random.default_rng(seed), 0
    for task in range(3):
        labels = dice.permutation(np.repeat([2 * task, 2 * task + 1], 30))
        for step, start in enumerate(range(0, 60, 7)):
            part = labels[start : start + 7]
            yield task, 10 * task + step, samples(np.arange(number, number + len(part)), part)
            number += len(part)


@pytest.mark.parametrize("size", [1, 5, 12, 13, 40])
def test_over_a_stream_the_policy_knows_what_the_buffer_holds(size):
    buffer = buffer_with(GreedyBalance(size, SPEC), size)
    labels_seen = {}
    for _, step, batch in random_stream(size):
        labels_seen |= dict(zip(batch.images.flatten().tolist(), batch.labels_host.tolist(), strict=True))
        buffer.add(batch, generator(0, "buffer", step))
        content = held(buffer)
        assert len(content) == len(buffer) <= size
        assert len({number for number, _ in content}) == len(content)
        assert all(labels_seen[number] == label for number, label in content)
        assert buffer.policy.counts.tolist() == np.bincount([label for _, label in content], minlength=6).tolist()
        assert buffer.policy.owners[: len(content)].tolist() == [label for _, label in content]
        assert (buffer.policy.owners[len(content) :] == -1).all()


def test_after_every_task_the_classes_seen_have_equal_shares():
    buffer = buffer_with(GreedyBalance(12, SPEC), 12)
    ends = {}
    for task, step, batch in random_stream(0):
        buffer.add(batch, generator(0, "buffer", step))
        ends[task] = buffer.policy.counts.tolist()
    assert ends == {0: [6, 6, 0, 0, 0, 0], 1: [3, 3, 3, 3, 0, 0], 2: [2] * 6}


@pytest.mark.parametrize("policy", [GreedyBalance, ClassBalanced])
def test_a_restored_policy_goes_on_identically(tmp_path, policy):
    batches = list(random_stream(4))
    for cut, is_full in ((1, False), (8, True)):
        whole, restored = (buffer_with(policy(9, SPEC), 9) for _ in range(2))
        for _, step, batch in batches[:cut]:
            whole.add(batch, generator(0, "buffer", step))
        before = held(whole)
        assert (len(whole) >= 8) == is_full  # 9 // 2 slots for each of two classes
        torch.save(whole.state_dict(), tmp_path / "state")
        restored.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
        assert held(restored) == before
        for _, step, batch in batches[cut:]:
            for buffer in (whole, restored):
                buffer.add(batch, generator(0, "buffer", step))
            assert held(restored) == held(whole)
        assert len(set(held(whole)) - set(before)) > 3


def test_every_class_seen_has_the_same_number_of_slots():
    """Thirteen slots: 13, 6, 4, 3, 2 and 2 for each of 1 to 6 classes; what remains is unused."""
    buffer, seen = buffer_with(ClassBalanced(13, SPEC), 13), np.zeros(6, dtype=int)
    labels_of = {}
    for _, step, batch in random_stream(3):
        seen += np.bincount(batch.labels_host, minlength=6)
        labels_of |= dict(zip(batch.images.flatten().tolist(), batch.labels_host.tolist(), strict=True))
        buffer.add(batch, generator(0, "buffer", step))
        content = held(buffer)
        assert all(labels_of[number] == label for number, label in content)
        assert len({number for number, _ in content}) == len(content)
        counts = np.bincount([label for _, label in content], minlength=6)
        assert counts.tolist() == np.minimum(seen, 13 // np.count_nonzero(seen)).tolist()


def test_samples_of_a_class_are_equally_likely_to_be_held():
    """Whether they came before or after another class took half of the slots."""
    counts = np.zeros(20)
    for run in range(3000):
        buffer = buffer_with(ClassBalanced(6, SPEC), 6)
        for step, (numbers, label) in enumerate([(range(10), 0), (range(20, 24), 1), (range(10, 20), 0)]):
            buffer.add(samples(list(numbers), [label] * len(numbers)), generator(run, "buffer", step))
        counts[[number for number, label in held(buffer) if label == 0]] += 1
    assert counts.sum() == 3 * 3000
    assert stats.chisquare(counts).pvalue > 1e-3


def test_what_is_added_takes_the_place_of_everything():
    buffer = buffer_with(MethodManaged(4, SPEC), 4)
    assert len(buffer) == 0
    assert held(buffer) == []
    buffer.add(samples([7, 8, 9, 10], [0, 0, 1, 1]))
    assert held(buffer) == [(7, 0), (8, 0), (9, 1), (10, 1)]
    buffer.add(samples([20, 7, 21], [4, 0, 2]))
    assert len(buffer) == 3
    assert held(buffer) == [(20, 4), (7, 0), (21, 2)]
    assert sorted(buffer.sample_slots(9, generator(0, "replay", 0)).tolist()) == [0, 1, 2]


class Changed(Reservoir):
    """A reservoir whose results a test changes."""

    saved = ("seen", "late", "scores", "queue")
    late = None

    def __init__(self, change_slots=lambda slots: slots, change_sample=lambda slots: slots):
        super().__init__(8, SPEC)
        self.change_slots, self.change_sample = change_slots, change_sample
        self.scores, self.queue = np.zeros(2, np.float32), np.zeros((0, 3), np.int64)

    def slots(self, batch, draw):
        return self.change_slots(super().slots(batch, draw))

    def sample(self, buffer, count, draw):
        return self.change_sample(super().sample(buffer, count, draw))


@pytest.mark.parametrize("change", [lambda s: s[1:], lambda s: s + 6, lambda s: s.astype(float), lambda s: s > 0])
def test_slots_that_are_none_end_the_run(change):
    buffer = buffer_with(Changed(change_slots=change), 8)
    with pytest.raises(RunFailed, match="`slots`"):
        buffer.add(samples(range(3), [0, 1, 2]), generator(0, "buffer"))


@pytest.mark.parametrize("change", [lambda s: s + 3, lambda s: s - 3, lambda s: s >= 0, lambda s: s[:0]])
def test_draws_of_slots_without_samples_end_the_run(change):
    buffer = buffer_with(Changed(change_sample=change), 8)
    buffer.add(samples(range(3), [0, 1, 2]), generator(0, "buffer"))
    with pytest.raises(RunFailed, match="`sample`"):
        buffer.sample_slots(2, generator(0, "replay"))


def test_arrays_of_a_policy_are_restored_as_they_were():
    policy, restored = Changed(), Changed()
    policy.late, policy.scores = np.array([True, False]), np.array([0.1, 0.2], np.float32)
    restored.load_state_dict(policy.state_dict())
    for name in ("late", "scores", "queue"):
        array, expected = getattr(restored, name), getattr(policy, name)
        assert (array.dtype, array.tolist()) == (expected.dtype, expected.tolist())
        assert array.shape == expected.shape
