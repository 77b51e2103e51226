"""iCaRL: herding, targets and the nearest mean by hand, and what the exemplars are used for."""

from itertools import pairwise
from math import log, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from backbone.network import Network
from backbone.norms import norm_factory
from models.icarl import Icarl, herd
from tests.helpers import (
    CPU,
    assert_close,
    build_run,
    make_output,
    make_samples,
    make_spec,
    make_stream,
    record_steps,
    run_config,
    sample_numbers,
)
from utils.data.augment import Augment, Crop, Flip
from utils.data.buffer import Buffer, MethodManaged
from utils.data.stream import TensorStream, make_batch, ranges
from utils.errors import UsageError
from utils.run.build import check_together
from utils.run.observers import Observer
from utils.run.training import Training
from utils.step import StepIndex


@pytest.mark.parametrize(
    ("vectors", "count", "expected"),
    [
        # A, B, C: the mean is (8/15, 9/15). C is nearest to it; then (A + C)/2 = (0.8, 0.4) is nearer than
        # (B + C)/2 = (0.3, 0.9), squared distances 0.11 and 0.14, though B alone is nearer than A. C again would be
        # nearest, but is taken.
        ([(1.0, 0.0), (0.0, 1.0), (0.6, 0.8)], 3, [2, 0, 1]),
        ([(1.0, 0.0), (0.0, 1.0), (0.6, 0.8)], 2, [2, 0]),
        ([(0.6, 0.8), (0.0, 1.0), (1.0, 0.0)], 3, [0, 2, 1]),
        # A, B, C, D: the mean is (0.25, 0.65). First C, at a squared distance of 0.145. Then B: (A + C)/2, (B + C)/2,
        # (C + D)/2 are at 0.365, 0.065, 0.085. Then A: (A + B + C)/3 is at 0.083, (B + C + D)/3 at 0.109, though A
        # alone is the farthest.
        ([(1.0, 0.0), (0.0, 1.0), (0.6, 0.8), (-0.6, 0.8)], 4, [2, 1, 0, 3]),
        ([(1.0, 0.0), (0.0, 1.0)], 5, [0, 1]),  # all where there are fewer
    ],
)
def test_herding_by_hand(vectors, count, expected):
    assert herd(torch.tensor(vectors, dtype=torch.float64), count) == expected


THREE_TASKS = make_spec(n_tasks=3, n_classes=6)


def odds(*rows) -> torch.Tensor:
    """Return logits whose sigmoids are n / (n + 1)."""
    return torch.tensor(rows, dtype=torch.float64).log()


def bce(target: float, n: float) -> float:
    return -target * log(n / (n + 1)) - (1 - target) * log(1 / (n + 1))


def loss_of(logits, labels, task, past_net=None) -> torch.Tensor:
    method = Icarl(None, SimpleNamespace(), THREE_TASKS, None, None)
    method.past_net = past_net
    batch = make_samples(labels, inputs=torch.ones(len(labels)))
    (loss,) = method.loss({"current": batch}, {"current": make_output(logits)}, StepIndex(task, 5)).values()
    return loss


def test_targets_of_the_first_task_are_one_hot():
    """The mean over two samples and two classes; classes that were not seen have no part."""
    logits = odds([1, 2, 50, 60, 70, 80], [3, 4, 1, 1, 1, 1]).requires_grad_()
    loss = loss_of(logits, [0, 1], 0)
    expected = (bce(1, 1) + bce(0, 2) + bce(0, 3) + bce(1, 4)) / 4
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    loss.backward()
    assert not logits.grad[:, 2:].any()
    assert_close(logits.grad[:, :2], [[(1 / 2 - 1) / 4, (2 / 3) / 4], [(3 / 4) / 4, (4 / 5 - 1) / 4]])


def test_targets_of_past_classes_are_what_the_network_said_before():
    """Whatever the label: the second sample is an exemplar of class 1. Classes 2 and 3 are the task's own."""
    said = odds([1, 3, 9, 9, 9, 9], [1 / 4, 7, 9, 9, 9, 9])  # sigmoids 1/2, 3/4 and 1/5, 7/8
    asked = []

    def before(inputs):
        asked.append(inputs)
        return said

    logits = odds([1, 2, 3, 4, 90, 90], [5, 6, 7, 8, 90, 90]).requires_grad_()
    loss = loss_of(logits, [3, 1], 1, before)
    first = bce(1 / 2, 1) + bce(3 / 4, 2) + bce(0, 3) + bce(1, 4)
    second = bce(1 / 5, 5) + bce(7 / 8, 6) + bce(0, 7) + bce(0, 8)
    assert loss.item() == pytest.approx((first + second) / 8, abs=1e-12)
    assert [inputs.tolist() for inputs in asked] == [[1.0, 1.0]]
    loss.backward()
    assert not logits.grad[:, 4:].any()
    assert_close(logits.grad[0, :4], [0, (2 / 3 - 3 / 4) / 8, (3 / 4) / 8, (4 / 5 - 1) / 8])


class Pixels(Network):
    """The first two of three pixels are the embedding: of (a, b, c) it is (a, b), of its mirror image (c, b)."""

    def __init__(self):
        super().__init__(norm_factory("bn"))
        self.classifier = torch.nn.Linear(2, 4)
        self.double()

    def body(self, x):
        return x.flatten(1)[:, :2], ()


def of_pixels(pixels, labels, sizes, capacity: int) -> tuple[Icarl, TensorStream]:
    spec = make_spec(
        image_shape=(1, 1, 3), mean=(0.0,), std=(1 / 255,), train_sizes=sizes, augmentation=(Crop(1), Flip())
    )
    images = np.array(pixels, dtype=np.uint8).reshape(-1, 1, 1, 3)
    data = make_batch(images, np.array(labels))
    stream = TensorStream(spec, data, data, ranges(sizes), ranges(sizes), seed=0, batch_size=4)
    augment = Augment(spec, 0, CPU, torch.float64)
    buffer = Buffer(capacity, MethodManaged(capacity, spec), spec, CPU)
    return Icarl(Pixels(), SimpleNamespace(), spec, augment, buffer, lambda _: Pixels()), stream


def test_nearest_mean_by_hand():
    """Class 0: (3, 4, 0) is (0.6, 0.8), its mirror image (0, 1); the sum is (0.6, 1.8), that is (1, 3) / sqrt(10).
    Class 1: (4, 3, 0) is (0.8, 0.6), mirrored (0, 1); (12, 0, 5) is (1, 0), mirrored too; the sum is (2.8, 1.6)."""
    method, stream = of_pixels([[4, 3, 0], [3, 4, 0], [12, 0, 5]], [1, 0, 1], (3, 0), 8)
    method.end_task(0, stream)
    assert sorted(method.buffer.all_samples().labels.tolist()) == [0, 1, 1]
    means = np.array([[1, 3] / np.sqrt(10), [2.8, 1.6] / np.sqrt(2.8**2 + 1.6**2)])
    # (5, 12) and (8, 6), brought to length 1; the third pixel has no part.
    inputs = torch.tensor([[5.0, 12.0, 99.0], [8.0, 6.0, 0.0]], dtype=torch.float64).view(2, 1, 1, 3)
    embeddings = np.array([[5 / 13, 12 / 13], [0.8, 0.6]])
    distances = [[sqrt(((e - m) ** 2).sum()) for m in means] for e in embeddings]
    scores = method.predict(inputs)
    assert_close(scores[:, :2], -np.array(distances), atol=1e-7)
    assert scores[:, 2:].tolist() == [[-torch.inf] * 2] * 2
    assert scores.argmax(1).tolist() == [0, 1]


def by_brute_force(pixels: np.ndarray, count: int) -> list[int]:
    """Herding on embeddings of length 1, from its definition."""
    unit = pixels[:, :2] / np.linalg.norm(pixels[:, :2], axis=1, keepdims=True)
    chosen: list[int] = []
    for _ in range(count):
        left = [k for k in range(len(unit)) if k not in chosen]
        chosen.append(min(left, key=lambda k: np.linalg.norm(unit.mean(0) - unit[[*chosen, k]].mean(0))))
    return chosen


def test_every_class_has_the_capacity_over_the_seen_classes_and_older_ones_are_cut_from_the_end():
    """Nine slots: four for each of two classes, then two for each of four. The first pixels tell samples apart."""
    dice = np.random.default_rng(5)
    pixels = dice.integers(1, 250, (28, 3))
    labels = np.concatenate([dice.permutation([0, 1] * 7), dice.permutation([2, 3] * 7)])
    method, stream = of_pixels(pixels, labels, (14, 14), 9)

    def expected(label, count):
        members = np.flatnonzero(labels == label)
        return [tuple(pixels[members[k]]) for k in by_brute_force(pixels[members].astype(float), count)]

    def held(label):
        whole = method.buffer.all_samples()
        assert whole.labels.tolist() == whole.labels_host.tolist()
        assert whole.tasks.tolist() == whole.tasks_host.tolist() == (whole.labels_host // 2).tolist()
        return [tuple(image.flatten().tolist()) for image in whole.images[whole.labels == label]]

    method.end_task(0, stream)
    assert len(method.buffer) == 8
    first = {label: held(label) for label in (0, 1)}
    assert first == {label: expected(label, 4) for label in (0, 1)}
    method.end_task(1, stream)
    assert len(method.buffer) == 8
    assert {label: held(label) for label in (0, 1)} == {label: exemplars[:2] for label, exemplars in first.items()}
    assert {label: held(label) for label in (2, 3)} == {label: expected(label, 2) for label in (2, 3)}


def look(step) -> SimpleNamespace:
    """Keep what counts in a step, without its graph."""
    batch, norms = step.batches["current"], step.outputs["current"].norms
    return SimpleNamespace(
        task=step.index.task,
        batches=list(step.batches),
        numbers=sample_numbers(batch.images),
        tasks=batch.tasks.tolist(),
        weights=norms.group_weights,
        penalty=None if norms.penalty is None else norms.penalty.item(),
        terms={name: value.item() for name, value in step.loss_terms.items()},
    )


def steps_by_task(norm: str, **options):
    """Train on sixteen samples a task, with eight exemplars."""
    stream = make_stream(make_spec(train_sizes=(16, 16)))
    steps, method, outcome = record_steps(run_config("icarl", norm, buffer_size=9, **options), stream, look)
    return [[step for step in steps if step.task == task] for task in (0, 1)], method, outcome


def test_exemplars_join_the_data_of_the_next_task():
    (first, second), method, outcome = steps_by_task("bn", n_epochs=2)
    assert (len(first), len(second), outcome["steps"]) == (2 * 4, 2 * 6, 20)
    assert all(step.batches == ["current"] for step in (*first, *second))
    for epoch in (first[:4], first[4:]):
        assert sorted(np.concatenate([step.numbers for step in epoch])) == list(range(16))
    exemplars = []
    for epoch in (second[:6], second[6:]):
        numbers = sorted(np.concatenate([step.numbers for step in epoch]).tolist())
        assert numbers[8:] == list(range(16, 32))
        assert len(set(numbers)) == 24
        exemplars.append(numbers[:8])
        for step in epoch:
            assert step.tasks == [int(number >= 16) for number in step.numbers]
    assert exemplars[0] == exemplars[1]
    old = method.buffer.tasks_host[: len(method.buffer)] == 0
    assert set(sample_numbers(method.buffer.all_samples().images)[old].tolist()) <= set(exemplars[0])


def test_tasks_and_penalty_count_once_there_are_exemplars():
    (first, second), *_ = steps_by_task("adab2n", lambd=0.5)
    assert [(step.weights, step.penalty, list(step.terms)) for step in first] == [(None, None, ["labels"])] * 4
    assert len(second) == 6
    for step in second:
        assert step.weights.shape == (2, 2)
        assert step.terms["penalty"] == pytest.approx(0.5 * step.penalty)
        assert step.penalty > 0
    counts = np.bincount(second[0].tasks, minlength=2)
    expected = (1 + counts) / (2 + counts.sum())  # psi is still zero
    assert_close(second[0].weights.detach()[:, 0], expected, atol=1e-6)


class MeansByHand(Observer):
    """Computes the means of the exemplars at every evaluation within the second task."""

    def __init__(self, method):
        self.method, self.seen = method, []

    @torch.no_grad()
    def on_mid_task_eval(self, event):
        if event["task"] == 1:
            method, held = self.method, self.method.buffer.all_samples()
            method.net.eval()
            inputs = [method.augment.normalize(images) for images in (held.images, held.images.flip(3))]
            unit = sum(F.normalize(method.net.output(part).embedding, dim=1) for part in inputs)
            means = torch.stack([F.normalize(unit[held.labels == label].sum(0), dim=0) for label in (0, 1)])
            method.net.train()
            assert_close(method.means[:2], means, atol=1e-10)
            self.seen.append(means)


def test_evaluations_within_a_task_take_the_means_of_the_network_as_it_is():
    stream, config = make_stream(make_spec()), run_config("icarl", buffer_size=8, eval_every=1, dtype="float64")
    _, method = build_run(config, stream)
    Training(config, stream, method, [means := MeansByHand(method)]).run()
    assert len(means.seen) == 3
    assert all((before - after).abs().max() > 1e-4 for before, after in pairwise(means.seen))


def test_a_buffer_smaller_than_the_classes_and_tasks_that_share_classes_are_refused():
    with pytest.raises(UsageError, match="--buffer_size 3"):
        check_together(run_config("icarl", buffer_size=3), make_spec())
    check_together(run_config("icarl", buffer_size=4), make_spec())
    with pytest.raises(UsageError, match="--model icarl"):
        check_together(run_config("icarl"), make_spec("domain"))
