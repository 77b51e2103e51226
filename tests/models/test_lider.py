"""LiDER's coefficients against numpy, its targets and its loss."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from models.lider import coefficients, pooling_matrix
from tests.helpers import CPU, assert_close, build_run, make_spec, make_stream, run_config, weights_of
from utils.data.random import generator
from utils.step import StepIndex

EPS = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize(("size", "bins"), [(64, 3), (21, 11), (10, 4), (5, 5), (9, 1), (3, 5)])
def test_pooling_matrix_is_adaptive_average_pooling(size, bins):
    x = torch.randn(2, 3, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_close(x @ pooling_matrix(size, bins, x.dtype, CPU).T, F.adaptive_avg_pool1d(x, bins), atol=1e-14)


# --- coefficients ------------------------------------------------------------------------------------------------


def pooled(values: np.ndarray, axis: int, bins: int) -> np.ndarray:
    size = values.shape[axis]
    windows = [range(k * size // bins, -(-(k + 1) * size // bins)) for k in range(bins)]
    return np.stack([values.take(list(window), axis).mean(axis) for window in windows], axis)


def correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return M of one sample: maps (C, H, W), pooled to the same channels and size, of unit length everywhere."""
    b = pooled(b, 0, a.shape[0])
    a, b = (x / (np.sqrt((x**2).sum(0)) + EPS) for x in (a, b))
    if a.shape[1] > b.shape[1]:
        a = pooled(pooled(a, 1, b.shape[1]), 2, b.shape[2])
    return np.einsum("cij,dij->cd", a, b) / (b.shape[1] * b.shape[2])


def power_iteration(square: np.ndarray, v: np.ndarray, count: int) -> np.ndarray:
    for _ in range(count):
        v = square @ v
        v = v / (np.linalg.norm(v) + EPS)
    return v


def last_iteration(square: np.ndarray, v: np.ndarray) -> float:
    """Return the square root of its length, over that of the vector it ends with, as the released code has it."""
    v = square @ v
    length = np.linalg.norm(v) + EPS
    return np.sqrt(length / (np.linalg.norm(v / length) + EPS))


PAIRS = {
    "image to stem": ((3, 8, 8), (16, 8, 8)),
    "same shape": ((5, 6, 6), (5, 6, 6)),
    "next stage": ((4, 8, 8), (8, 4, 4)),
    "odd sizes": ((7, 21, 21), (12, 11, 11)),
}


def pair_of_maps(name: str, shift: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three samples of both maps, and where the iteration starts; a shift makes one singular value dominate."""
    rng = np.random.default_rng(5)
    a, b = (rng.normal(shift, 1.0, (3, *shape)) for shape in PAIRS[name])
    return a, b, rng.random((3, a.shape[1]))


@pytest.mark.parametrize("pair", PAIRS)
def test_coefficient_is_ten_power_iterations(pair):
    """Neither nine nor eleven, in double precision for single-precision maps too."""
    a, b, start = pair_of_maps(pair, shift=0.0)
    values = coefficients(*map(torch.from_numpy, (a, b, start)))
    matrices = [correlation(x, y) for x, y in zip(a, b, strict=True)]
    for count, is_close in ((9, False), (10, True), (11, False)):
        expected = [
            last_iteration(m @ m.T, power_iteration(m @ m.T, v, count - 1))
            for m, v in zip(matrices, start, strict=True)
        ]
        error = np.abs(values.numpy() - expected).max()
        assert error < 1e-12 if is_close else error > 1e-9
    single = [torch.from_numpy(x).float() for x in (a, b)]
    values = coefficients(*single, torch.from_numpy(start))
    assert values.dtype == torch.float64
    assert_close(values, coefficients(*(x.double() for x in single), torch.from_numpy(start)), rtol=1e-6, atol=0)


def test_only_the_last_iteration_has_a_gradient():
    """Finite differences with the last vector held fixed; with all iterations the derivative is another."""
    a, b, start = (array[:1] for array in pair_of_maps("next stage", shift=0.0))
    tensors = [torch.from_numpy(x).requires_grad_() for x in (a, b)]
    coefficients(*tensors, torch.from_numpy(start)).sum().backward()

    def value(x, y, v=None):
        square = correlation(x[0], y[0]) @ correlation(x[0], y[0]).T
        return last_iteration(square, power_iteration(square, start[0], 9) if v is None else v)

    matrix = correlation(a[0], b[0])
    held = power_iteration(matrix @ matrix.T, start[0], 9)
    rng, h = np.random.default_rng(8), 1e-6
    for _ in range(4):
        da, db = rng.normal(size=a.shape), rng.normal(size=b.shape)
        analytic = (tensors[0].grad.numpy() * da).sum() + (tensors[1].grad.numpy() * db).sum()
        fixed, full = (
            (value(a + h * da, b + h * db, v) - value(a - h * da, b - h * db, v)) / (2 * h) for v in (held, None)
        )
        assert analytic == pytest.approx(fixed, rel=1e-6)
        assert abs(analytic - full) > 1e-4 * abs(analytic)


# --- targets and loss --------------------------------------------------------------------------------------------


def lider_run(model: str = "er_ace_lider", **options):
    """Return a double-precision run whose first task fills more than one batch of the targets' pass."""
    stream = make_stream(make_spec(train_sizes=(100, 10), image_shape=(3, 16, 16), std=(0.3,) * 3))
    net, method = build_run(run_config(model, backbone="resnet18", dtype="float64", seed=2, **options), stream)
    return stream, net, method


def expected_coefficients(inputs, features, name: str, *address: int) -> torch.Tensor:
    values = []
    for pair, (a, b) in enumerate(pairwise([inputs, *features])):
        start = generator(2, f"power/{name}/{pair}", *address).random(a.shape[:2])
        values.append(coefficients(a, b, torch.from_numpy(start)))
    return torch.stack(values, dim=1)


def test_targets_are_the_mean_over_the_first_task_in_eval_mode():
    stream, net, method = lider_run()
    before = weights_of(net)
    method.begin_task(0, stream)
    net.eval()
    inputs = method.augment.normalize(stream.task_data(0).images)
    with torch.no_grad():
        parts = [(part, net.output(part).features) for part in inputs.split(64)]
    expected = [expected_coefficients(*part, "start", number) for number, part in enumerate(parts)]
    targets = method.targets.detach().clone()
    assert_close(targets, torch.cat(expected).mean(0), atol=1e-9)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    with torch.no_grad():
        net.conv1.weight.mul_(-1)
    method.begin_task(1, stream)  # later tasks leave them
    assert torch.equal(method.targets.detach(), targets)


def terms_of(stream, net, method, targets, step: int = 0):
    """Return batches, outputs and loss terms of a step with the current batch and both of LiDER's draws."""
    batches, outputs = {}, {}
    net.train()
    method.targets.data = torch.tensor(targets, dtype=torch.float64)
    for name, batch in zip(("current", "lip_mean", "lip_target"), stream.in_order(0, 4), strict=False):
        batches[name] = replace(batch, inputs=method.augment.normalize(batch.images))
        outputs[name] = net.output(batches[name].inputs)
    return batches, outputs, method.loss(batches, outputs, StepIndex(0, step))


def test_loss_adds_the_mean_and_the_distance_to_the_targets():
    stream, net, method = lider_run(alpha_lip=0.7, beta_lip=0.2)
    batches, outputs, terms = terms_of(stream, net, method, [0.9, 0.1, -3.0, 0.5, 2.0], step=6)
    base = F.cross_entropy(outputs["current"].logits, batches["current"].labels)
    mean, target = (
        expected_coefficients(batches[name].inputs, outputs[name].features, name, 6)
        for name in ("lip_mean", "lip_target")
    )
    assert mean.shape == (4, 5)
    distance = (target - torch.tensor([0.9, 0.1, 0.0, 0.5, 2.0])).abs().mean()
    expected = {"current": base, "lip_mean": 0.7 * mean.mean(), "lip_target": 0.2 * distance}
    assert {name: value.item() for name, value in terms.items()} == pytest.approx(
        {name: value.item() for name, value in expected.items()}, abs=1e-7
    )
    assert method.loss({"current": batches["current"]}, outputs, StepIndex(0, 0)).keys() == {"current"}


def test_gradients_reach_learned_targets_and_the_network():
    """Far above every coefficient each of five targets is pulled down by beta / 5; a negative one is not moved."""
    stream, net, method = lider_run(lip_targets="learned", beta_lip=0.3)
    *_, terms = terms_of(stream, net, method, [9.0, 9.0, -1.0, 9.0, 9.0])
    (terms["lip_mean"] + terms["lip_target"]).backward()
    assert method.targets.grad.tolist() == pytest.approx([0.06, 0.06, 0.0, 0.06, 0.06], abs=1e-12)
    assert net.conv1.weight.grad.abs().max() > 1e-6
    assert net.stages[3][1].conv2.weight.grad.abs().max() > 1e-6
    assert net.classifier.weight.grad is None
