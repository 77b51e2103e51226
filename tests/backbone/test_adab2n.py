"""AdaB2N against numbers worked out by hand; test_trace.py has every setting, against numpy."""

from math import log, sqrt

import pytest
import torch
from torch import nn

from backbone.norms import norm_factory
from tests.backbone.twins import assert_same_steps, give_random_affine, random_inputs
from tests.helpers import NORM_IMPLS, assert_close

EPS = 1e-5
C, H, W = 64, 3, 5


def ada_layers(*channels: int, tasks: int = 1, **options):
    """(shared state, layers) in double precision after so many tasks of two classes were begun."""
    factory = norm_factory("adab2n", **options)
    layers = [factory(count, spatial=(2, 2)).double() for count in channels]
    shared = factory.shared.double()
    for task in range(tasks):
        shared.begin_task(n_classes=2 * (task + 1))
    return shared, layers


def run_forward(shared, layers, inputs, tasks=None) -> list[torch.Tensor]:
    with shared.forward_pass(None if tasks is None else torch.tensor(tasks)):
        return [layer(x) for layer, x in zip(layers, inputs, strict=True)]


def maps(*rows, channels: int = 1) -> torch.Tensor:
    """(N, channels, 1, W) from one row of numbers per sample and channel."""
    values = torch.tensor(rows, dtype=torch.float64)
    return values.view(-1, channels, 1, values.shape[1])


@pytest.mark.parametrize("impl", NORM_IMPLS)
@pytest.mark.parametrize("tasks", [None, [0] * 6], ids=["no tasks", "one task"])
def test_adab2n_with_one_task_and_ema_is_batch_norm(tasks, impl):
    shared, [layer] = ada_layers(C, kappa=1.0, lambd=0.0, norm_impl=impl)
    twin = nn.BatchNorm2d(C).double()
    give_random_affine(layer, twin)
    *steps, unseen = random_inputs(4, (6, C, H, W))
    assert_same_steps(layer, twin, steps, lambda layer, x: run_forward(shared, [layer], [x], tasks)[0])
    values = 6 * H * W
    start = 0.9 ** len(steps)
    biased = start + (twin.running_var - start) * (values - 1) / values
    assert_close(layer.running_mean, twin.running_mean)
    assert_close(layer.running_var, biased)
    twin.running_var.copy_(biased)
    assert_close(layer.eval()(unseen), twin.eval()(unseen))


def test_kappa_0_is_a_cumulative_average():
    shared, [layer] = ada_layers(1, kappa=0.0)
    momenta, batch_means = [], [3.0, -1.0, 8.0, 2.5]
    for batch_mean in batch_means:
        momenta.append(layer.eta.item())
        run_forward(shared, [layer], [maps([batch_mean - 1, batch_mean + 1])])
    assert momenta == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4], abs=1e-15)
    assert layer.running_mean.item() == pytest.approx(3.125, abs=1e-12)
    assert layer.running_var.item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    ("absent", "expected"),
    [("counted", [5 / 42, 5 / 42, 6 / 14, 5 / 42]), ("ignored", [5 / 33, 5 / 33, 6 / 11, 5 / 33])],
)
def test_weights_with_an_absent_task(absent, expected):
    """phi is 2, 3, 5; three samples of task 0, none of task 1, one of task 2: p is 5, 3, 6 over 14 or over 11."""
    shared, [layer] = ada_layers(4, tasks=3, kappa=0.0, absent_tasks=absent)
    for psi, phi in zip(shared.psi, (2, 3, 5), strict=True):
        nn.init.constant_(psi, log(phi))
    one_hot = torch.eye(4, dtype=torch.float64).view(4, 4, 1, 1).expand(-1, -1, 1, 2)
    run_forward(shared, [layer], [one_hot], [0, 0, 2, 0])
    assert_close(layer.running_mean, expected)  # channel n is 1 in sample n alone


@pytest.mark.parametrize(("variance", "sigma2"), [("mixture", 11.64), ("within", 3.0)])
def test_mean_and_variance_by_hand(variance, sigma2):
    """p is 3/5 and 2/5: the mean is .6 * 4 + .4 * 10, the variances within the tasks are 5 and 0."""
    shared, [layer] = ada_layers(1, tasks=2, kappa=0.0, variance=variance)
    a = maps([1.0, 3.0], [10.0, 10.0], [5.0, 7.0])
    [out] = run_forward(shared, [layer], [a], [0, 1, 0])
    assert layer.running_mean.item() == pytest.approx(6.4, abs=1e-12)
    assert layer.running_var.item() == pytest.approx(sigma2, abs=1e-12)
    assert_close(out, (a - 6.4) / sqrt(sigma2 + EPS))


def test_penalty_by_hand():
    """Two layers: means 2, 4 and 3, variances 1, 9 and 4; running statistics move from (0, 1) by a tenth."""
    inputs = [maps([1.0, 1.0], [1.0, 1.0], [3.0, 3.0], [7.0, 7.0], channels=2), maps([1.0, 1.0], [5.0, 5.0])]
    squares = [0.81 * (2**2 + 0), 0.81 * (4**2 + 8**2), 0.81 * (3**2 + 3**2)]
    for norm, expected in (("mean", sum(squares[:2]) / 2 + squares[2]), ("sum", sum(squares))):
        shared, layers = ada_layers(2, 1, kappa=1.0, lambd=1.0, penalty_norm=norm)
        with shared.forward_pass(None, penalized=True) as this:
            for layer, x in zip(layers, inputs, strict=True):
                layer(x)
        assert this.report.penalty.item() == pytest.approx(expected, abs=1e-12)


def test_a_layer_trains_once_in_a_forward_and_never_outside_of_one():
    shared, [layer] = ada_layers(4)
    [x] = random_inputs(1, (2, 4, 2, 2))
    with pytest.raises(RuntimeError, match="trains once"):
        layer(x)
    with pytest.raises(RuntimeError, match="trains once"):
        run_forward(shared, [layer, layer], [x, x])
    assert layer.num_batches_tracked == 0
    run_forward(shared, [layer], [x])
    assert layer.num_batches_tracked == 1
    with pytest.raises(RuntimeError, match="trains once"):
        layer(x)
    layer.eval()(x)
