"""Forwarding the parts of a step, as one batch or one by one."""

import numpy as np
import pytest
import torch

from models.method import Part
from tests.helpers import CPU, build_run, make_spec, make_stream, run_config
from utils.run.build import build_network
from utils.run.training import forward_parts

SIZES = {"current": 5, "logits": 3, "labels": 4}


def random_parts(sizes: dict[str, int] = SIZES) -> dict[str, Part]:
    """Parts whose samples all belong to another task than those of the other parts."""
    draw = torch.Generator().manual_seed(0)
    return {
        name: Part(
            torch.randn(size, 3, 16, 16, dtype=torch.float64, generator=draw),
            torch.zeros(size, dtype=torch.int64),
            np.zeros(size, dtype=int),
            np.full(size, task),
        )
        for task, (name, size) in enumerate(sizes.items())
    }


class RecordingNet:
    """Says for every sample the number in its first pixel, and keeps what it was called with."""

    def __init__(self):
        self.calls = []

    def forward_features(self, x, tasks=None):
        self.calls.append((len(x), None if tasks is None else tasks.tolist()))
        first = x[:, 0, 0, :1]
        return first, [first + 100, first + 200]


def network(norm: str):
    config = run_config("derpp", norm=norm, backbone="resnet18", dtype="float64")
    net = build_network(config, make_spec(image_shape=(3, 16, 16)), CPU)
    for _ in SIZES:
        net.begin_task()
    return net


def joint_and_separate(norm: str):
    return [forward_parts(network(norm), random_parts(), joint=joint) for joint in (True, False)]


@pytest.mark.parametrize("norm", ["gn", "ln", "in"])
def test_without_batch_statistics_both_ways_agree(norm):
    together, apart = joint_and_separate(norm)
    assert list(together) == list(apart) == list(SIZES)
    for name, size in SIZES.items():
        assert together[name].logits.shape == (size, 4)
        assert len(together[name].features) == len(apart[name].features) == 5
        torch.testing.assert_close(together[name].logits, apart[name].logits, rtol=0, atol=1e-11)
        for mine, theirs in zip(together[name].features, apart[name].features, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize("norm", ["bn", "cn", "adab2n"])
def test_with_batch_statistics_they_differ(norm):
    together, apart = joint_and_separate(norm)
    for name in SIZES:
        assert (together[name].logits - apart[name].logits).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("joint", "calls"),
    [(True, [(12, [0] * 5 + [1] * 3 + [2] * 4)]), (False, [(5, [0] * 5), (3, [1] * 3), (4, [2] * 4)])],
)
def test_parts_are_split_in_their_order(joint, calls):
    parts, net = random_parts(), RecordingNet()
    outputs = forward_parts(net, parts, joint=joint)
    assert net.calls == calls
    for name, part in parts.items():
        expected = part.inputs[:, 0, 0, :1]
        assert torch.equal(outputs[name].logits, expected)
        assert torch.equal(outputs[name].features[0], expected + 100)
        assert torch.equal(outputs[name].features[1], expected + 200)


@pytest.mark.parametrize("joint", [True, False])
def test_a_part_alone_has_plain_batch_statistics(joint):
    net = RecordingNet()
    outputs = forward_parts(net, random_parts({"current": 5}), joint=joint)
    assert net.calls == [(5, None)]
    assert list(outputs) == ["current"]


@pytest.mark.parametrize(("joint", "updates"), [(True, 1), (False, 3)])
def test_every_forward_moves_the_running_statistics(joint, updates):
    net = network("bn")
    forward_parts(net, random_parts(), joint=joint)
    assert net.norm1.num_batches_tracked.item() == updates


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
    assert method.replayed(random_parts(dict.fromkeys(names, 2))) == replayed
