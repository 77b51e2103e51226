"""Norm layers against torch's own."""

import pytest
import torch
from torch import nn

from backbone.norms import norm_factory
from tests.backbone.twins import assert_same_steps, give_random_affine, random_inputs
from tests.helpers import assert_close
from utils.errors import UsageError

C, H, W = 64, 3, 5

EQUIVALENTS = {
    "bn": ("bn", {}, lambda: nn.BatchNorm2d(C)),
    "gn": ("gn", {}, lambda: nn.GroupNorm(32, C)),
    "gn-4": ("gn", {"groups": 4}, lambda: nn.GroupNorm(4, C)),
    "ln": ("ln", {}, lambda: nn.LayerNorm([C, H, W])),
    "ln-channel": ("ln", {"ln_affine": "channel"}, lambda: nn.GroupNorm(1, C)),
    "in": ("in", {}, lambda: nn.InstanceNorm2d(C)),
    "in-channel": ("in", {"in_affine": "channel"}, lambda: nn.InstanceNorm2d(C, affine=True)),
    "cn": (
        "cn",
        {"groups": 16},
        lambda: nn.Sequential(nn.GroupNorm(16, C, affine=False), nn.BatchNorm2d(C, affine=False)),
    ),
    "cn-learned": (
        "cn",
        {"groups": 32, "cn_affine": "learned"},
        lambda: nn.Sequential(nn.GroupNorm(32, C, affine=False), nn.BatchNorm2d(C)),
    ),
}


@pytest.mark.parametrize("case", EQUIVALENTS)
def test_norm_is_the_torch_layer_it_claims_to_be(case):
    name, options, make_twin = EQUIVALENTS[case]
    layer, twin = norm_factory(name, **options)(C, spatial=(H, W)).double(), make_twin().double()
    assert [p.shape for p in layer.parameters()] == [p.shape for p in twin.parameters()]
    give_random_affine(layer, twin)
    *steps, unseen = random_inputs(4, (6, C, H, W))
    assert_same_steps(layer, twin, steps)
    assert [key.split(".")[-1] for key, _ in layer.named_buffers()] == [
        key.split(".")[-1] for key, _ in twin.named_buffers()
    ]
    for mine, theirs in zip(layer.buffers(), twin.buffers(), strict=True):
        assert_close(mine, theirs)
    assert_close(layer.eval()(unseen), twin.eval()(unseen))


@pytest.mark.parametrize(
    ("name", "make_twin"),
    [
        ("bn", lambda: nn.BatchNorm1d(C)),
        ("gn", lambda: nn.GroupNorm(32, C)),
        ("ln", lambda: nn.LayerNorm(C)),
        ("cn", lambda: nn.Sequential(nn.GroupNorm(32, C, affine=False), nn.BatchNorm1d(C, affine=False))),
    ],
)
def test_norm_of_a_vector(name, make_twin):
    layer, twin = norm_factory(name)(C, spatial=()).double(), make_twin().double()
    give_random_affine(layer, twin)
    *steps, unseen = random_inputs(3, (6, C))
    assert_same_steps(layer, twin, steps)
    assert_close(layer.eval()(unseen), twin.eval()(unseen))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("spatial", [(), (1, 2)])
def test_none_is_scale_and_shift(spatial, training):
    layer = norm_factory("none")(2, spatial=spatial).double().train(training)
    x = torch.arange(1.0, 9.0 if spatial else 5.0, dtype=torch.float64).view(2, 2, *spatial).requires_grad_()
    assert torch.equal(layer(x), x)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([2.0, -1.5]))
        layer.bias.copy_(torch.tensor([1.0, -3.0]))
    out = layer(x)
    assert_close(out[:, 0], 2 * x[:, 0] + 1)
    assert_close(out[:, 1], -1.5 * x[:, 1] - 3)
    out.sum().backward()
    assert_close(x.grad[:, 1], torch.full_like(x[:, 1], -1.5))
    assert_close(layer.weight.grad, [1 + 2 + 5 + 6, 3 + 4 + 7 + 8] if spatial else [1 + 3, 2 + 4])
    assert_close(layer.bias.grad, [4, 4] if spatial else [2, 2])
    assert not list(layer.buffers())


@pytest.mark.parametrize("name", ["gn", "cn"])
def test_groups_that_do_not_divide_the_channels_are_refused(name):
    with pytest.raises(UsageError, match="32 groups do not divide 48 channels"):
        norm_factory(name)(48, spatial=(4, 4))


@pytest.mark.parametrize("spatial", [(), (1, 1)])
def test_instance_norm_of_one_value_is_refused(spatial):
    with pytest.raises(UsageError, match="single value is always zero"):
        norm_factory("in")(8, spatial=spatial)
