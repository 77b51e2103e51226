"""`sn` against plain formulas, the three norms that it mixes, and finite differences."""

import numpy as np
import pytest
import torch
from torch import nn

from backbone.norms import norm_factory
from tests.backbone.twins import assert_same_outputs_and_gradients
from tests.helpers import assert_close
from utils.errors import UsageError

EPS = 1e-5
N, C, H, W = SHAPE = 4, 3, 2, 5


def a_layer() -> nn.Module:
    return norm_factory("sn")(C, spatial=(H, W)).double()


def with_random_parameters() -> nn.Module:
    layer, draw = a_layer(), torch.Generator().manual_seed(5)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, 0.5, 1.0, generator=draw)
    return layer


def inputs(count: int = 1, shape=SHAPE) -> list[torch.Tensor]:
    """Samples and channels of different means, so that it matters what a mean is over."""
    draw = torch.Generator().manual_seed(2)
    of_sample, of_channel = torch.arange(shape[0]).view(-1, 1, 1, 1), torch.arange(shape[1]).view(-1, 1, 1)
    return [torch.randn(shape, dtype=torch.float64, generator=draw) + of_sample - 2 * of_channel for _ in range(count)]


def softmax(values: torch.Tensor) -> np.ndarray:
    exponentials = np.exp(values.detach().numpy())
    return exponentials / exponentials.sum()


def plain(layer: nn.Module, a: np.ndarray, running: tuple[np.ndarray, np.ndarray] | None = None) -> np.ndarray:
    """The definition, with BN's part from the batch or from running mean and variance."""
    by = {"in": (2, 3), "ln": (1, 2, 3), "bn": (0, 2, 3)}
    means = {name: a.mean(axes, keepdims=True) for name, axes in by.items()}
    variances = {name: a.var(axes, keepdims=True) for name, axes in by.items()}
    if running is not None:
        means["bn"], variances["bn"] = (statistic.reshape(1, C, 1, 1) for statistic in running)
    mean = sum(weight * means[name] for weight, name in zip(softmax(layer.mean_weights), by, strict=True))
    var = sum(weight * variances[name] for weight, name in zip(softmax(layer.var_weights), by, strict=True))
    gamma, beta = (p.detach().numpy().reshape(1, C, 1, 1) for p in (layer.weight, layer.bias))
    return (a - mean) / np.sqrt(var + EPS) * gamma + beta


def test_training_and_testing_against_the_formula():
    layer = with_random_parameters()
    *steps, unseen = inputs(4)
    mean, var, count = np.zeros(C), np.ones(C), N * H * W
    for x in steps:
        assert_close(layer(x), plain(layer, x.numpy()))
        a = x.numpy()
        mean = 0.9 * mean + 0.1 * a.mean((0, 2, 3))
        var = 0.9 * var + 0.1 * a.var((0, 2, 3)) * count / (count - 1)
    assert_close(layer.running_mean, mean)
    assert_close(layer.running_var, var)
    layer.eval()
    expected = plain(layer, unseen.numpy(), (mean, var))
    assert_close(layer(unseen), expected)
    assert_close(layer(unseen[2:3]), expected[2:3])  # whatever else is in the batch
    assert_close(layer.running_mean, mean)


def test_by_hand_with_the_weights_that_it_starts_with():
    """Samples (1, 3) and (5, 11) of one channel: IN's means are 2 and 8, as are LN's, BN's is 5; variances are 1 and 9,
    BN's is 14."""
    layer = norm_factory("sn")(1, spatial=(1, 2)).double()
    x = torch.tensor([[1.0, 3.0], [5.0, 11.0]], dtype=torch.float64).view(2, 1, 1, 2)
    means, variances = torch.tensor([3.0, 7.0]).view(2, 1, 1, 1), torch.tensor([16 / 3, 32 / 3]).view(2, 1, 1, 1)
    assert_close(layer(x), (x - means) / (variances.double() + EPS).sqrt(), atol=1e-6)


@pytest.mark.parametrize(
    ("number", "make_twin"),
    [(0, lambda: nn.InstanceNorm2d(C)), (1, lambda: nn.GroupNorm(1, C)), (2, lambda: nn.BatchNorm2d(C))],
)
def test_with_all_weight_on_one_it_is_that_one(number, make_twin):
    layer, twin = a_layer(), make_twin().double()
    with torch.no_grad():
        for weights in (layer.mean_weights, layer.var_weights):
            weights[number] = 60.0
    *steps, unseen = inputs(3)
    for x in steps:
        assert_same_outputs_and_gradients(layer, twin, x)
    assert_close(layer.eval()(unseen), twin.eval()(unseen))


@pytest.mark.parametrize("spatial", [(), (1, 1)])
def test_a_single_value_per_instance_is_refused(spatial):
    with pytest.raises(UsageError, match="single value"):
        norm_factory("sn")(C, spatial=spatial)
