"""LiDER's coefficients against numpy, its targets and its loss."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from models.lider import coefficients, pooling_matrix
from tests.helpers import CPU, assert_close, build_run, make_spec, make_stream, run_config
from utils.data.random import generator
from utils.step import Batch, Normalization, Output, StepIndex, total

EPS = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize(("size", "bins"), [(64, 3), (21, 11), (10, 4), (5, 5), (7, 2), (8, 4), (9, 1), (3, 5)])
def test_pooling_matrix_is_adaptive_average_pooling(size, bins):
    x = torch.randn(2, 3, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_close(x @ pooling_matrix(size, bins, x.dtype, CPU).T, F.adaptive_avg_pool1d(x, bins), atol=1e-14)


# --- coefficients ------------------------------------------------------------------------------------------------


def pooled(values: np.ndarray, axis: int, bins: int) -> np.ndarray:
    size = values.shape[axis]
    windows = [range(k * size // bins, -(-(k + 1) * size // bins)) for k in range(bins)]
    return np.stack([values.take(list(window), axis).mean(axis) for window in windows], axis)


def correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """M of one sample: maps (C, H, W), pooled to the same channels and size, of unit length at every position."""
    b = pooled(b, 0, a.shape[0])
    a, b = (x / (np.sqrt((x**2).sum(0)) + EPS) for x in (a, b))
    if a.shape[1] > b.shape[1]:
        a = pooled(pooled(a, 1, b.shape[1]), 2, b.shape[2])
    area = b.shape[1] * b.shape[2]
    return np.einsum("cij,dij->cd", a, b) / area


def power_iteration(square: np.ndarray, v: np.ndarray, count: int) -> np.ndarray:
    for _ in range(count):
        v = square @ v
        v = v / (np.linalg.norm(v) + EPS)
    return v


def last_iteration(square: np.ndarray, v: np.ndarray) -> float:
    """The square root of its length, over that of the vector it ends with, as the released code has it."""
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
    """Three samples of both maps, and where the iteration starts; a shift makes one singular value dominate."""
    rng = np.random.default_rng(5)
    a, b = (rng.normal(shift, 1.0, (3, *shape)) for shape in PAIRS[name])
    return a, b, rng.random((3, a.shape[1]))


@pytest.mark.parametrize("pair", PAIRS)
def test_coefficient_is_the_largest_singular_value(pair):
    a, b, start = pair_of_maps(pair, shift=2.0)
    found = coefficients(*map(torch.from_numpy, (a, b, start)))
    expected = [np.linalg.svd(correlation(x, y), compute_uv=False)[0] for x, y in zip(a, b, strict=True)]
    assert found.dtype == torch.float64
    assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("pair", PAIRS)
def test_coefficient_is_ten_power_iterations(pair):
    a, b, start = pair_of_maps(pair, shift=0.0)
    found = coefficients(*map(torch.from_numpy, (a, b, start)))
    expected = []
    for x, y, v in zip(a, b, start, strict=True):
        square = correlation(x, y) @ correlation(x, y).T
        expected.append(last_iteration(square, power_iteration(square, v, 9)))
    assert_close(found, expected, atol=1e-12)


def test_ten_iterations_are_neither_nine_nor_eleven():
    a, b, start = pair_of_maps("odd sizes", shift=0.0)
    found = coefficients(*map(torch.from_numpy, (a, b, start)))[0].item()
    square = correlation(a[0], b[0]) @ correlation(a[0], b[0]).T
    nine, ten, eleven = (last_iteration(square, power_iteration(square, start[0], count - 1)) for count in (9, 10, 11))
    assert abs(found - ten) < 1e-12
    assert min(abs(found - nine), abs(found - eleven)) > 1e-6


def test_coefficients_of_single_precision_maps_are_double():
    a, b, start = pair_of_maps("next stage", shift=0.0)
    single, start = [torch.from_numpy(x).float() for x in (a, b)], torch.from_numpy(start)
    expected = coefficients(*(x.double() for x in single), start)
    found = coefficients(*single, start)
    assert found.dtype == torch.float64
    assert_close(found, expected, rtol=1e-6, atol=0)


def test_only_the_last_iteration_has_a_gradient():
    """Finite differences with the last vector held fixed; with all iterations the derivative is another."""
    a, b, start = (array[:1] for array in pair_of_maps("next stage", shift=0.0))
    tensors = [torch.from_numpy(x).requires_grad_() for x in (a, b)]
    coefficients(*tensors, torch.from_numpy(start)).sum().backward()

    def value(x, y, v=None):
        matrix = correlation(x[0], y[0])
        square = matrix @ matrix.T
        return last_iteration(square, power_iteration(square, start[0], 9) if v is None else v)

    matrix = correlation(a[0], b[0])
    held = power_iteration(matrix @ matrix.T, start[0], 9)
    rng = np.random.default_rng(8)
    for _ in range(4):
        da, db = rng.normal(size=a.shape), rng.normal(size=b.shape)
        analytic = (tensors[0].grad.numpy() * da).sum() + (tensors[1].grad.numpy() * db).sum()
        h = 1e-6
        fixed, full = (
            (value(a + h * da, b + h * db, v) - value(a - h * da, b - h * db, v)) / (2 * h) for v in (held, None)
        )
        assert analytic == pytest.approx(fixed, rel=1e-6)
        assert abs(analytic - full) > 1e-4 * abs(analytic)


# --- targets and loss --------------------------------------------------------------------------------------------

FIRST_TASK = 100


def lider_run(model: str = "er_ace_lider", **options):
    """A double-precision run whose first task fills more than one batch of the targets' pass."""
    stream = make_stream(make_spec(train_sizes=(FIRST_TASK, 10), image_shape=(3, 16, 16), std=(0.3,) * 3))
    config = run_config(model, backbone="resnet18", dtype="float64", seed=2, **options)
    net, method = build_run(config, stream)
    return stream, net, method


def singular_values(inputs: torch.Tensor, features: list[torch.Tensor]) -> np.ndarray:
    """(samples, pairs) by numpy's decomposition."""
    maps = [x.detach().numpy() for x in (inputs, *features)]
    return np.array(
        [
            [np.linalg.svd(correlation(a[n], b[n]), compute_uv=False)[0] for a, b in pairwise(maps)]
            for n in range(len(inputs))
        ]
    )


def test_targets_are_the_mean_over_the_first_task_in_eval_mode():
    stream, net, method = lider_run()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    method.begin_task(0, stream)
    net.eval()
    inputs = method.augment.normalize(stream.task_data(0).images)
    with torch.no_grad():
        features = net.output(inputs).features
    starts = [
        np.concatenate([generator(2, f"power/start/{pair}", 0).random((64, c)),
                        generator(2, f"power/start/{pair}", 1).random((36, c))])
        for pair, c in enumerate([3, 4, 4, 8, 16])
    ]  # fmt: skip
    maps = [inputs, *features]
    expected = [
        coefficients(a, b, torch.from_numpy(v)).mean() for a, b, v in zip(maps[:-1], features, starts, strict=True)
    ]
    assert_close(method.targets.detach(), torch.stack(expected), atol=1e-9)
    assert_close(method.targets.detach(), singular_values(inputs, features).mean(0), rtol=1e-3, atol=0)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_targets_stay_what_they_are_when_later_tasks_begin():
    stream, net, method = lider_run()
    method.begin_task(0, stream)
    targets = method.targets.detach().clone()
    with torch.no_grad():
        net.conv1.weight.mul_(-1)
    method.begin_task(1, stream)
    assert torch.equal(method.targets.detach(), targets)


@pytest.mark.parametrize(("targets", "learned"), [("constant", False), ("learned", True)])
@pytest.mark.parametrize("model", ["er_ace_lider", "derpp_lider"])
def test_learned_targets_are_parameters(model, targets, learned):
    stream, _, method = lider_run(model, lip_targets=targets)
    method.begin_task(0, stream)
    assert [p is method.targets for p in method.parameters()] == ([True] if learned else [])
    assert method.targets.requires_grad == learned
    assert method.targets.shape == (5,)


def batches_and_outputs(stream, net, method):
    """The current batch and both of LiDER's draws, forwarded one by one."""
    batches, outputs = {}, {}
    for name, batch in zip(("current", "lip_mean", "lip_target"), stream.in_order(0, 4), strict=False):
        batches[name] = replace(batch, inputs=method.augment.normalize(batch.images))
        outputs[name] = net.output(batches[name].inputs)
    return batches, outputs


def loss_of(method, batches: dict[str, Batch], outputs: dict[str, Output], index: StepIndex) -> torch.Tensor:
    return total(method.loss(batches, outputs, index).values())


def expected_coefficients(batch, output, name: str, step: int) -> torch.Tensor:
    maps = [batch.inputs, *output.features]
    return torch.stack(
        [
            coefficients(a, b, torch.from_numpy(generator(2, f"power/{name}/{pair}", step).random((4, a.shape[1]))))
            for pair, (a, b) in enumerate(pairwise(maps))
        ],
        dim=1,
    )


def test_loss_adds_the_mean_and_the_distance_to_the_targets():
    stream, net, method = lider_run(alpha_lip=0.7, beta_lip=0.2)
    method.begin_task(0, stream)
    net.train()
    method.targets.data = torch.tensor([0.9, 0.1, -3.0, 0.5, 2.0], dtype=torch.float64)
    batches, outputs = batches_and_outputs(stream, net, method)
    index = StepIndex(0, 6)
    base = F.cross_entropy(outputs["current"].logits, batches["current"].labels)
    size, target = (expected_coefficients(batches[n], outputs[n], n, 6) for n in ("lip_mean", "lip_target"))
    distance = (target - torch.tensor([0.9, 0.1, 0.0, 0.5, 2.0])).abs().mean()
    found = loss_of(method, batches, outputs, index)
    assert found.item() == pytest.approx((base + 0.7 * size.mean() + 0.2 * distance).item(), abs=1e-7)
    assert size.shape == (4, 5)


def test_loss_without_draws_is_the_base_methods():
    stream, net, method = lider_run()
    method.begin_task(0, stream)
    batches, outputs = batches_and_outputs(stream, net, method)
    only = {"current": batches["current"]}
    base = F.cross_entropy(outputs["current"].logits, batches["current"].labels)
    assert loss_of(method, only, outputs, StepIndex(0, 0)).item() == pytest.approx(base.item(), abs=1e-12)


def test_learned_targets_receive_gradients_through_their_relu():
    """Far above every coefficient each of five targets is pulled down by beta / 5; a negative one is not moved."""
    stream, net, method = lider_run(lip_targets="learned", beta_lip=0.3)
    method.begin_task(0, stream)
    net.train()
    method.targets.data = torch.tensor([9.0, 9.0, -1.0, 9.0, 9.0], dtype=torch.float64)
    batches, outputs = batches_and_outputs(stream, net, method)
    loss_of(method, batches, outputs, StepIndex(0, 0)).backward()
    assert method.targets.grad.tolist() == pytest.approx([0.06, 0.06, 0.0, 0.06, 0.06], abs=1e-12)


def test_lider_terms_reach_the_network():
    stream, net, method = lider_run()
    method.begin_task(0, stream)
    net.train()
    batches, outputs = batches_and_outputs(stream, net, method)
    zero = {name: replace(output, logits=output.logits.detach()) for name, output in outputs.items()}
    loss_of(method, batches, zero, StepIndex(0, 0)).backward()
    assert net.conv1.weight.grad.abs().max() > 1e-6
    assert net.stages[3][1].conv2.weight.grad.abs().max() > 1e-6
    assert net.classifier.weight.grad is None


def test_both_draws_start_with_the_buffer():
    stream, _, method = lider_run(batch_size=4)
    batch = next(stream.in_order(0, 4))
    assert list(method.batches(batch, StepIndex(0, 0))) == ["current"]
    logits = torch.zeros(4, 4)
    method.remember(batch, {"current": Output(logits, logits, (), Normalization())}, StepIndex(0, 0))
    assert list(method.batches(batch, StepIndex(0, 1))) == ["current", "lip_mean", "lip_target"]
    assert list(method.batches(batch, StepIndex(1, 2))) == ["current", "replay", "lip_mean", "lip_target"]
