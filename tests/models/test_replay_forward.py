"""Forwarding the batches of a step, as one or one by one."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from backbone.norms.shared import SharedNormState
from models.method import Method
from tests.helpers import build_run, make_spec, make_stream, run_config
from utils.step import Batch, Normalization, Output, forwards_of

SIZES = {"current": 5, "logits": 3, "labels": 4}
WAYS = {True: "joint", False: "separate"}


def random_batches(sizes: dict[str, int] = SIZES) -> dict[str, Batch]:
    """Batches whose samples all belong to another task than those of the other batches."""
    draw = torch.Generator().manual_seed(0)
    batches = {}
    for task, (name, size) in enumerate(sizes.items()):
        inputs = torch.randn(size, 3, 16, 16, dtype=torch.float64, generator=draw)
        labels = np.zeros(size, dtype=int)
        tasks = np.full(size, task)
        batches[name] = Batch(
            torch.empty(0), torch.from_numpy(labels), torch.from_numpy(tasks), labels, tasks, inputs=inputs
        )
    return batches


class RecordingNet:
    """Says for every sample the number in its first pixel, and keeps what it was called with."""

    norms = SharedNormState()

    def __init__(self):
        self.calls = []

    def output(self, x, groups=None, *, penalized=False):
        self.calls.append((len(x), None if groups is None else groups.tolist(), penalized))
        first = x[:, 0, 0, :1]
        return Output(first, first + 50, (first + 100, first + 200), Normalization(layers=(len(self.calls),)))


def recording_method(joint: bool) -> Method:
    return Method(RecordingNet(), SimpleNamespace(replay_forward=WAYS[joint]), make_spec(), None, None)


def method_of(norm: str, joint: bool) -> Method:
    config = run_config("derpp", norm=norm, backbone="resnet18", dtype="float64", replay_forward=WAYS[joint])
    net, method = build_run(config, make_stream(make_spec(image_shape=(3, 16, 16))))
    for _ in SIZES:
        net.begin_task(n_classes=4)
    return method


def forward(method: Method, batches: dict[str, Batch]) -> dict[str, Output]:
    return method.forward(batches, 0, replayed=len(batches) > 1, penalized=False)


def joint_and_separate(norm: str):
    return [forward(method_of(norm, joint), random_batches()) for joint in (True, False)]


@pytest.mark.parametrize("norm", ["gn", "ln", "in", "none", "bn_frozen"])  # statistics are frozen after three tasks
def test_without_batch_statistics_both_ways_agree(norm):
    together, apart = joint_and_separate(norm)
    assert list(together) == list(apart) == list(SIZES)
    for name, size in SIZES.items():
        assert together[name].logits.shape == (size, 4)
        assert len(together[name].features) == len(apart[name].features) == 5
        torch.testing.assert_close(together[name].logits, apart[name].logits, rtol=0, atol=1e-11)
        torch.testing.assert_close(together[name].embedding, apart[name].embedding, rtol=0, atol=1e-11)
        for mine, theirs in zip(together[name].features, apart[name].features, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize("norm", ["bn", "cn", "adab2n", "brn", "sn"])
def test_with_batch_statistics_they_differ(norm):
    together, apart = joint_and_separate(norm)
    for name in SIZES:
        assert (together[name].logits - apart[name].logits).abs().max() > 1e-3


@pytest.mark.parametrize("penalized", [True, False])
@pytest.mark.parametrize("replayed", [True, False])
@pytest.mark.parametrize(
    ("joint", "calls"),
    [(True, [(12, [0] * 5 + [1] * 3 + [2] * 4)]), (False, [(5, [0] * 5), (3, [1] * 3), (4, [2] * 4)])],
)
def test_batches_are_split_in_their_order(joint, calls, replayed, penalized):
    batches, method = random_batches(), recording_method(joint)
    outputs = method.forward(batches, 0, replayed=replayed, penalized=penalized)
    assert method.net.calls == [(*call, penalized) for call in calls]
    assert list(outputs) == list(batches)
    for number, (name, batch) in enumerate(batches.items(), start=1):
        expected = batch.inputs[:, 0, 0, :1]
        assert torch.equal(outputs[name].logits, expected)
        assert torch.equal(outputs[name].embedding, expected + 50)
        assert len(outputs[name].features) == 2
        assert torch.equal(outputs[name].features[0], expected + 100)
        assert torch.equal(outputs[name].features[1], expected + 200)
        assert outputs[name].norms.layers == ((1,) if joint else (number,))
    assert [norms.layers for norms in forwards_of(outputs)] == [(k,) for k in range(1, len(calls) + 1)]


@pytest.mark.parametrize("penalized", [True, False])
@pytest.mark.parametrize("joint", [True, False])
def test_a_batch_alone_has_plain_batch_statistics(joint, penalized):
    method = recording_method(joint)
    outputs = method.forward(random_batches({"current": 5}), 0, replayed=False, penalized=penalized)
    assert method.net.calls == [(5, None, penalized)]
    assert list(outputs) == ["current"]


@pytest.mark.parametrize(("joint", "updates"), [(True, 1), (False, 3)])
def test_every_forward_moves_the_running_statistics(joint, updates):
    method = method_of("bn", joint)
    forward(method, random_batches())
    assert method.net.norm1.num_batches_tracked.item() == updates


@pytest.mark.parametrize(
    ("model", "names", "replayed"),
    [
        ("er_ace_lider", ["current"], False),
        ("er_ace_lider", ["current", "lip_mean", "lip_target"], False),
        ("er_ace_lider", ["current", "replay", "lip_mean", "lip_target"], True),
        ("derpp_lider", ["current", "lip_mean", "lip_target"], False),
        ("derpp_lider", ["current", "logits", "labels", "lip_mean", "lip_target"], True),
        ("er_ace", ["current", "replay"], True),
        ("er_ace", ["current"], False),
    ],
)
def test_draws_of_lider_are_no_replay(model, names, replayed):
    config = run_config(model, backbone="resnet18")
    _, method = build_run(config, make_stream(make_spec()))
    assert method.is_replay_step(random_batches(dict.fromkeys(names, 2))) == replayed


def test_samples_of_a_task_that_has_not_begun_are_refused():
    """On a device nobody would see that they count for nothing."""
    stream = make_stream(make_spec())
    _, method = build_run(run_config("er", "adab2n"), stream)
    method.grow()
    with pytest.raises(ValueError, match="task 1, which has not begun"):
        method.forward({"current": random_batches()["logits"]}, 0, replayed=True, penalized=False)
