"""AdaB2N against numbers worked out by hand."""

from math import sqrt

import pytest
import torch
from torch import nn

from backbone.norms import norm_factory
from tests.backbone.twins import assert_same_steps, give_random_affine, random_inputs
from tests.helpers import NORM_IMPLS, assert_close

EPS = 1e-5
C, H, W = 64, 3, 5
each_impl = pytest.mark.parametrize("impl", NORM_IMPLS)


def ada_layers(*channels: int, tasks: int = 1, **options):
    """(shared state, layers) in double precision after so many tasks of two classes were begun."""
    factory = norm_factory("adab2n", **options)
    layers = [factory(count, spatial=(2, 2)).double() for count in channels]
    shared = factory.shared.double()
    for task in range(tasks):
        shared.begin_task(n_classes=2 * (task + 1))
    return shared, layers


def run_forward(shared, layers, inputs, tasks=None) -> list[torch.Tensor]:
    return run_penalized(shared, layers, inputs, tasks, penalized=False)[0]


def run_penalized(shared, layers, inputs, tasks=None, *, penalized=True):
    """(outputs, penalty) of a forward."""
    with shared.forward_pass(None if tasks is None else torch.tensor(tasks), penalized=penalized) as this:
        outputs = [layer(x) for layer, x in zip(layers, inputs, strict=True)]
    return outputs, this.report.penalty


def set_phi(shared, *values) -> None:
    """phi of every seen task, one number for all layers or one per layer."""
    with torch.no_grad():
        for psi, phi in zip(shared.psi, values, strict=True):
            psi.copy_(torch.as_tensor(phi, dtype=psi.dtype).log().expand_as(psi))


def maps(*rows, channels: int = 1) -> torch.Tensor:
    """(N, channels, 1, W) from one row of numbers per sample and channel."""
    values = torch.tensor(rows, dtype=torch.float64)
    return values.view(-1, channels, 1, values.shape[1])


@each_impl
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


def etas(count: int, **options) -> list[float]:
    """The momenta of the first batches, read off a running mean that starts at 0 and sees batch means of 1."""
    shared, [layer] = ada_layers(1, **options)
    momenta, mean = [], 0.0
    for _ in range(count):
        announced = layer.eta.item()
        run_forward(shared, [layer], [maps([0.0, 2.0])])
        momenta.append((layer.running_mean.item() - mean) / (1 - mean) if mean != 1 else announced)
        assert momenta[-1] == pytest.approx(announced, abs=1e-12)
        mean = layer.running_mean.item()
    return momenta


def test_kappa_1_is_an_exponential_average():
    assert etas(5, kappa=1.0) == pytest.approx([0.1] * 5, abs=1e-12)


def test_kappa_0_is_a_cumulative_average():
    shared, [layer] = ada_layers(1, kappa=0.0)
    momenta, batch_means = [], [3.0, -1.0, 8.0, 2.5]
    for batch_mean in batch_means:
        momenta.append(layer.eta.item())
        run_forward(shared, [layer], [maps([batch_mean - 1, batch_mean + 1])])
    assert momenta == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4], abs=1e-15)
    assert layer.running_mean.item() == pytest.approx(3.125, abs=1e-12)
    assert layer.running_var.item() == pytest.approx(1.0, abs=1e-12)


def test_first_momenta_by_hand():
    first = 0.1**0.7
    assert etas(2, kappa=0.7)[:2] == pytest.approx([0.19952623149688797, first / (first + 0.9**0.7)], abs=1e-12)


def sample_weights(shared, layers, tasks) -> list[torch.Tensor]:
    """Weight of every sample in every layer: channel n is 1 in sample n alone, so its mean over the batch is w_n."""
    one_hot = torch.eye(len(tasks), dtype=torch.float64).view(len(tasks), len(tasks), 1, 1).expand(-1, -1, 1, 2)
    run_forward(shared, layers, [one_hot] * len(layers), tasks)
    return [layer.running_mean.clone() for layer in layers]


@pytest.mark.parametrize(
    ("absent", "expected"),
    [("counted", [5 / 42, 5 / 42, 6 / 14, 5 / 42]), ("ignored", [5 / 33, 5 / 33, 6 / 11, 5 / 33])],
)
def test_weights_with_an_absent_task(absent, expected):
    """phi is 2, 3, 5; three samples of task 0, none of task 1, one of task 2: p is 5, 3, 6 over 14 or over 11."""
    shared, layers = ada_layers(4, tasks=3, kappa=0.0, absent_tasks=absent)
    set_phi(shared, 2.0, 3.0, 5.0)
    assert_close(sample_weights(shared, layers, [0, 0, 2, 0])[0], expected)


@pytest.mark.parametrize(("variance", "sigma2"), [("mixture", 11.64), ("within", 3.0)])
def test_mean_and_variance_by_hand(variance, sigma2):
    """p is 3/5 and 2/5: the mean is .6 * 4 + .4 * 10, the variances within the tasks are 5 and 0."""
    shared, [layer] = ada_layers(1, tasks=2, kappa=0.0, variance=variance)
    a = maps([1.0, 3.0], [10.0, 10.0], [5.0, 7.0])
    [out] = run_forward(shared, [layer], [a], [0, 1, 0])
    assert layer.running_mean.item() == pytest.approx(6.4, abs=1e-12)
    assert layer.running_var.item() == pytest.approx(sigma2, abs=1e-12)
    assert_close(out, (a - 6.4) / sqrt(sigma2 + EPS))


def penalty_example(**options):
    """Two layers: means 2, 4 and 3, variances 1, 9 and 4; running statistics move from (0, 1) by a tenth."""
    shared, layers = ada_layers(2, 1, kappa=1.0, lambd=1.0, **options)
    first = maps([1.0, 1.0], [1.0, 1.0], [3.0, 3.0], [7.0, 7.0], channels=2).requires_grad_()
    second = maps([1.0, 1.0], [5.0, 5.0]).requires_grad_()
    return shared, layers, [first, second]


def test_penalty_by_hand():
    squares = [0.81 * (2**2 + 0), 0.81 * (4**2 + 8**2), 0.81 * (3**2 + 3**2)]
    for norm, expected in (("mean", sum(squares[:2]) / 2 + squares[2]), ("sum", sum(squares))):
        shared, layers, inputs = penalty_example(penalty_norm=norm)
        assert shared.penalty_weight(0, True) == 1.0
        _, penalty = run_penalized(shared, layers, inputs)
        assert penalty.item() == pytest.approx(expected, abs=1e-12)


@each_impl
def test_running_statistics_are_constants_of_the_penalty(impl):
    """The gradient is 2 (mu - r) dmu + 2 (sigma2 - s) dsigma2, with nothing from r and s having moved."""
    shared, layers, inputs = penalty_example(penalty_norm="sum", norm_impl=impl)
    run_penalized(shared, layers, inputs)[1].backward()
    mu, sigma2 = 3.0, 4.0
    expected = (2 * (0.9 * mu) + 2 * 0.9 * (sigma2 - 1) * 2 * (inputs[1].detach() - mu)) / inputs[1].numel()
    assert_close(inputs[1].grad, expected)


@pytest.mark.parametrize(("start", "after"), [(1, 0.9 + 0.1 * 4.0), (0, 0.1 * 4.0)])
def test_running_variance_at_start(start, after):
    shared, [layer] = ada_layers(1, kappa=1.0, running_var_start=start)
    x = maps([3.0, -2.0])
    assert layer.running_var.item() == start
    assert_close(layer.eval()(x), x / sqrt(1 + EPS))
    layer.train()
    run_forward(shared, [layer], [maps([1.0, 5.0])])
    assert layer.running_var.item() == pytest.approx(after, abs=1e-12)
    assert_close(layer.eval()(x), (x - 0.3) / sqrt(after + EPS))


@pytest.mark.parametrize(
    ("steps", "first_task", "task", "replayed", "due"),
    [
        ("replay", 0, 0, True, True),
        ("replay", 0, 0, False, False),
        ("replay", 0, 1, False, False),
        ("replay", 1, 0, True, False),
        ("replay", 1, 1, True, True),
        ("all", 0, 0, False, True),
        ("all", 1, 0, False, False),
        ("all", 1, 0, True, False),
        ("all", 1, 1, False, True),
    ],
)
def test_which_steps_have_the_penalty(steps, first_task, task, replayed, due):
    shared, [layer] = ada_layers(1, lambd=2.5, penalty_steps=steps, ada_t0=first_task)
    weight = shared.penalty_weight(task, replayed)
    assert weight == (2.5 if due else 0.0)
    _, penalty = run_penalized(shared, [layer], [maps([1.0, 5.0])], penalized=weight > 0)
    assert (penalty is not None) == due
    assert penalty is None or penalty.item() > 0


@each_impl
def test_two_forwards_before_one_backward(impl):
    """Running means 0, .2, .18 + .5; each penalty is measured when its forward ends."""
    shared, [layer] = ada_layers(1, kappa=1.0, lambd=1.0, norm_impl=impl)
    first, second = maps([1.0, 3.0]).requires_grad_(), maps([3.0, 7.0]).requires_grad_()
    penalty = sum(run_penalized(shared, [layer], [x])[1] for x in (first, second))
    variances = [0.9 + 0.1 * 1, 0.9 * (0.9 + 0.1 * 1) + 0.1 * 4]
    assert layer.running_mean.item() == pytest.approx(0.68, abs=1e-12)
    assert layer.running_var.item() == pytest.approx(variances[1], abs=1e-12)
    assert penalty.item() == pytest.approx(
        (2 - 0.2) ** 2 + (1 - variances[0]) ** 2 + (5 - 0.68) ** 2 + (4 - variances[1]) ** 2, abs=1e-12
    )
    penalty.backward()
    for x, mu, sigma2, mean, var in ((first, 2, 1, 0.2, variances[0]), (second, 5, 4, 0.68, variances[1])):
        expected = (2 * (mu - mean) + 4 * (sigma2 - var) * (x.detach() - mu)) / 2
        assert_close(x.grad, expected)


def test_a_loaded_layer_that_started_at_variance_0_evaluates_its_statistics():
    shared, [layer] = ada_layers(1, running_var_start=0, kappa=1.0)
    run_forward(shared, [layer], [maps([1.0, 5.0])])
    fresh, [fresh_layer] = ada_layers(1, running_var_start=0, kappa=1.0)
    nn.ModuleList([fresh, fresh_layer]).load_state_dict(nn.ModuleList([shared, layer]).state_dict())
    x = maps([3.0, -2.0])
    assert_close(fresh_layer.eval()(x), (x - 0.3) / sqrt(0.4 + EPS))


@each_impl
def test_the_penalty_has_a_gradient_to_psi(impl):
    """With means 0 and 2, phi = 1 and two samples, mu is 2 p_1 and dp_1/dpsi_1 = p_1 (1 - p_1) / 2."""
    shared, [layer] = ada_layers(1, tasks=2, lambd=1.0, kappa=1.0, variance="within", norm_impl=impl)
    [out], penalty = run_penalized(shared, [layer], [maps([-1.0, 1.0], [1.0, 3.0])], [0, 1])
    (penalty + 0 * out.sum()).backward()
    expected = 2 * (1 - 0.1) * 2 * (0.5 / 4)
    assert shared.psi[1].grad.item() == pytest.approx(expected, abs=1e-12)
    assert shared.psi[0].grad.item() == pytest.approx(-expected, abs=1e-12)


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
