"""Forwarding the batches of a step, as one or one by one."""

from types import SimpleNamespace

import pytest
import torch

from backbone.norms.shared import SharedNormState
from models.method import Method
from tests.helpers import build_run, forward, make_samples, make_spec, make_stream, run_config
from utils.step import Batch, Normalization, Output, forwards_of

SIZES = {"current": 5, "logits": 3, "labels": 4}
WAYS = ["joint", "separate"]


def random_batches(*names: str) -> dict[str, Batch]:
    """Return batches whose samples all belong to another task than those of the other batches."""
    draw = torch.Generator().manual_seed(0)
    batches = {}
    for task, (name, size) in enumerate(SIZES.items()):
        inputs = torch.randn(size, 3, 16, 16, dtype=torch.float64, generator=draw)
        batches[name] = make_samples([0] * size, [task] * size, inputs=inputs)
    return {name: batches[name] for name in names or SIZES}


def forward_of(norm: str, way: str) -> tuple[Method, dict[str, Output]]:
    config = run_config("derpp", norm=norm, backbone="resnet18", dtype="float64", replay_forward=way)
    net, method = build_run(config, make_stream(make_spec(image_shape=(3, 16, 16))))
    for _ in SIZES:
        net.begin_task(n_classes=4)
    return method, forward(method, random_batches(), 0, replayed=True, penalized=False)


@pytest.mark.parametrize("norm", ["gn", "ln", "in", "none", "bn_frozen"])  # statistics are frozen after three tasks
def test_without_batch_statistics_both_ways_agree(norm):
    together, apart = (forward_of(norm, way)[1] for way in WAYS)
    assert list(together) == list(apart) == list(SIZES)
    for name, size in SIZES.items():
        assert together[name].logits.shape == (size, 4)
        assert len(together[name].features) == 5
        for part in ("logits", "embedding", "features"):
            mine, theirs = getattr(together[name], part), getattr(apart[name], part)
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11)


class RecordingNet:
    """Returns for every sample the number in its first pixel, and keeps what it was called with."""

    norms = SharedNormState()

    def __init__(self):
        self.calls = []

    def output(self, x, groups=None, *, penalized=False):
        self.calls.append((len(x), None if groups is None else groups.tolist(), penalized))
        first = x[:, 0, 0, :1]
        return Output(first, first + 50, (first + 100, first + 200), Normalization(layers=(len(self.calls),)))


def recording_method(way: str) -> Method:
    return Method(RecordingNet(), SimpleNamespace(replay_forward=way), make_spec(), None, None)


@pytest.mark.parametrize("penalized", [True, False])
@pytest.mark.parametrize("replayed", [True, False])
@pytest.mark.parametrize(
    ("way", "calls"),
    [("joint", [(12, [0] * 5 + [1] * 3 + [2] * 4)]), ("separate", [(5, [0] * 5), (3, [1] * 3), (4, [2] * 4)])],
)
def test_batches_are_split_in_their_order(way, calls, replayed, penalized):
    batches, method = random_batches(), recording_method(way)
    outputs = forward(method, batches, 0, replayed=replayed, penalized=penalized)
    assert method.net.calls == [(*call, penalized) for call in calls]
    assert list(outputs) == list(batches)
    for number, (name, batch) in enumerate(batches.items(), start=1):
        values = (outputs[name].logits, outputs[name].embedding, *outputs[name].features)
        for value, shift in zip(values, (0, 50, 100, 200), strict=True):
            assert torch.equal(value, batch.inputs[:, 0, 0, :1] + shift)
        assert outputs[name].norms.layers == ((1,) if way == "joint" else (number,))
    assert [norms.layers for norms in forwards_of(outputs)] == [(k,) for k in range(1, len(calls) + 1)]


@pytest.mark.parametrize("penalized", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_alone_has_plain_batch_statistics(way, penalized):
    method = recording_method(way)
    outputs = forward(method, random_batches("current"), 0, replayed=False, penalized=penalized)
    assert method.net.calls == [(5, None, penalized)]
    assert list(outputs) == ["current"]


def test_samples_of_a_task_that_has_not_begun_are_refused():
    """On a device nobody would see that they count for nothing."""
    _, method = build_run(run_config("er", "adab2n"), make_stream(make_spec()))
    method.grow()
    with pytest.raises(ValueError, match="task 1"):
        forward(method, {"current": random_batches("logits")["logits"]}, 0, replayed=True, penalized=False)
