"""The relatives of BN on the weighted primitive: `bnt`, `tbbn_weighted` and `cma` against torch's layers and numpy."""

import numpy as np
import pytest
import torch
from torch import nn

from backbone.norms import norm_factory
from tests.helpers import NORM_IMPLS, assert_close

EPS = 1e-5
SHAPE = (7, 3, 4, 5)
TASKS = np.array([3, 0, 0, 3, 1, 0, 0])  # task 2 is absent
BALANCED = np.array([1 / 6, 1 / 12, 1 / 12, 1 / 6, 1 / 3, 1 / 12, 1 / 12])
NORMS = ("bnt", "tbbn_weighted", "cma")
each_impl = pytest.mark.parametrize("impl", NORM_IMPLS)


def batches(count: int, shape=SHAPE) -> list[torch.Tensor]:
    """Samples of different means, so that weights matter."""
    draw = torch.Generator().manual_seed(4)
    space = (1,) * (len(shape) - 1)
    inputs = []
    for _ in range(count):
        centers = 2 * torch.randn(shape[0], *space, dtype=torch.float64, generator=draw)
        inputs.append(torch.randn(shape, dtype=torch.float64, generator=draw) + centers)
    return inputs


def direction_for(x: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 3, x.numel(), dtype=torch.float64).sin().view(x.shape)


def made(norm: str, impl: str = "auto", spatial=SHAPE[2:]):
    """(shared state, layer) in double precision, with scale and shift away from 1 and 0."""
    factory = norm_factory(norm, norm_impl=impl)
    layer, shared = give_affine(factory(SHAPE[1], spatial=spatial).double()), factory.shared.double()
    shared.begin_task(n_classes=2)
    return shared, layer


def give_affine(layer: nn.Module) -> nn.Module:
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.5, -1.5, 2.0]))
        layer.bias.copy_(torch.tensor([1.0, 0.3, -0.7]))
    return layer


def run(shared, layer, x, tasks=None) -> torch.Tensor:
    with shared.forward_pass(None if tasks is None else torch.from_numpy(tasks)):
        return layer(x)


def gradients_of(out, x, layer) -> list[torch.Tensor]:
    """Of the input, the scale and the shift."""
    return list(torch.autograd.grad((out * direction_for(out)).sum(), [x, layer.weight, layer.bias]))


def assert_steps_of_batch_norm(norm, impl, inputs, tasks, momentum=0.1) -> tuple[nn.Module, nn.Module]:
    """Outputs and gradients are BN's over some batches; returns the layer and the BN."""
    shared, layer = made(norm, impl, spatial=inputs[0].shape[2:])
    twin = give_affine(
        (nn.BatchNorm2d if inputs[0].dim() == 4 else nn.BatchNorm1d)(SHAPE[1], momentum=momentum).double()
    )
    for x in inputs:
        x = x.detach().requires_grad_()
        out = run(shared, layer, x, tasks)
        expected = twin(x)
        assert_close(out, expected)
        for actual, wanted in zip(gradients_of(out, x, layer), gradients_of(expected, x, twin), strict=True):
            assert_close(actual, wanted)
    return layer, twin


def statistics_by_numpy(x: torch.Tensor, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a = x.detach().numpy()
    mu = sum(w * a[n].mean((1, 2)) for n, w in enumerate(weights))
    return mu, sum(w * ((a[n] - mu[:, None, None]) ** 2).mean((1, 2)) for n, w in enumerate(weights))


def assert_balanced_running(layer, inputs) -> None:
    """A tenth of the task-balanced statistics of every batch, with the biased variance."""
    mean, var = np.zeros(SHAPE[1]), np.ones(SHAPE[1])
    for x in inputs:
        mu, sigma2 = statistics_by_numpy(x, BALANCED)
        mean, var = 0.9 * mean + 0.1 * mu, 0.9 * var + 0.1 * sigma2
    assert_close(layer.running_mean, mean)
    assert_close(layer.running_var, var)


@each_impl
def test_bnt_trains_like_batch_norm_and_balances_what_it_remembers(impl):
    inputs = batches(3)
    layer, twin = assert_steps_of_batch_norm("bnt", impl, inputs, TASKS)
    assert_balanced_running(layer, inputs)
    assert (layer.running_mean - twin.running_mean).abs().max() > 0.01


@each_impl
def test_tbbn_weighted_against_numpy(impl):
    inputs = batches(3)
    shared, layer = made("tbbn_weighted", impl)
    gamma, beta = layer.weight.detach().clone(), layer.bias.detach().clone()
    for x in inputs:
        x = x.detach().requires_grad_()
        out = run(shared, layer, x, TASKS)
        _, d_gamma, d_beta = gradients_of(out, x, layer)
        mu, sigma2 = statistics_by_numpy(x, BALANCED)
        unit = (x.detach().numpy() - mu[:, None, None]) / np.sqrt(sigma2 + EPS)[:, None, None]
        assert_close(out, gamma.numpy()[:, None, None] * unit + beta.numpy()[:, None, None])
        g = direction_for(x).numpy()
        shares = 7 * BALANCED[:, None, None, None]
        assert_close(d_gamma, (shares * g * unit).sum((0, 2, 3)))
        assert_close(d_beta, (shares * g).sum((0, 2, 3)))
    assert_balanced_running(layer, inputs)


@each_impl
@pytest.mark.parametrize("tasks", [None, TASKS], ids=["no tasks", "tasks"])
def test_cma_is_batch_norm_with_a_cumulative_average(impl, tasks):
    *inputs, unseen = batches(5)
    layer, twin = assert_steps_of_batch_norm("cma", impl, inputs, tasks, momentum=None)
    assert_close(layer.running_mean, twin.running_mean)
    assert_close(layer.running_var, twin.running_var)
    every = np.stack([x.detach().numpy() for x in inputs])
    assert_close(layer.running_mean, every.mean((1, 3, 4)).mean(0))
    assert_close(layer.running_var, every.var((1, 3, 4), ddof=1).mean(0))
    assert_close(layer.eval()(unseen), twin.eval()(unseen))


@each_impl
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [SHAPE, (7, 3, 1, 1), (7, 3)], ids=str)
def test_without_tasks_they_are_batch_norm(norm, impl, shape):
    """But for the biased running variance of those that know tasks."""
    inputs = batches(3, shape)
    layer, twin = assert_steps_of_batch_norm(norm, impl, inputs, None, momentum=None if norm == "cma" else 0.1)
    assert_close(layer.running_mean, twin.running_mean)
    expected = twin.running_var
    if norm != "cma":
        count, start = inputs[0].numel() / SHAPE[1], 0.9**3
        expected = start + (expected - start) * (count - 1) / count
    assert_close(layer.running_var, expected)


@pytest.mark.parametrize("norm", [*NORMS, "adab2n"])
def test_a_single_value_per_channel_is_refused(norm):
    shared, layer = made(norm)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        run(shared, layer, torch.zeros(1, 3, 1, 1, dtype=torch.float64), np.array([0]))


@each_impl
@pytest.mark.parametrize("norm", [*NORMS, "adab2n"])
def test_running_statistics_under_autocast(norm, impl):
    """bfloat16 activations: weights and statistics are computed in float32, as without autocast."""
    results = []
    for half in (False, True):
        factory = norm_factory(norm, norm_impl=impl)
        layer = factory(SHAPE[1], spatial=SHAPE[2:])
        for _ in range(4):
            factory.shared.begin_task(n_classes=2)
        x = batches(1)[0].bfloat16()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            out = run(factory.shared, layer, x if half else x.float(), TASKS)
        assert out.dtype == (torch.bfloat16 if half else torch.float32)
        assert layer.running_mean.dtype == layer.running_var.dtype == torch.float32
        results.append((layer.running_mean, layer.running_var, out.float()))
    (mean, var, out), (half_mean, half_var, half_out) = results
    assert_close(half_mean, mean, atol=1e-6)
    assert_close(half_var, var, atol=1e-6)
    assert_close(half_out, out, atol=2**-8 * out.abs().max().item())
