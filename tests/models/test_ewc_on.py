"""Online EWC: the importance of parameters against values by hand and in numpy, its recursion, its penalty."""

from math import log
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from models.ewc_on import EwcOnline
from tests.helpers import (
    assert_close,
    build_run,
    make_output,
    make_samples,
    make_spec,
    make_stream,
    run_config,
    weights_of,
)
from utils.data.augment import Crop, Flip
from utils.data.stream import TensorStream, make_batch, ranges
from utils.step import StepIndex

EPS = 1e-5
MEAN, STD = 0.3, 0.4


def numbers(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


class OnePixel(torch.nn.Module):
    """Two classes: logits (w_0 x, w_1 x + log 3) with w = 0, so that p = (1/4, 3/4) whatever the pixel."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 2).double()
        self.fixed = torch.nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=False)
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.bias.copy_(numbers(0.0, log(3)))

    def forward(self, x):
        return self.linear(x.flatten(1)) * self.fixed


def test_importance_of_a_linear_network_by_hand():
    """Of sample (x = 2, y = 0), d log p / d logits = (3/4, -3/4) and p = 1/4; of (x = 4, y = 1), (-1/4, 1/4) and 3/4.
    Biases: (1/4 9/16 + 3/4 1/16) / 2 = 3/32. Weights, with x^2 = 4 and 16: (9/16 + 12/16) / 2 = 21/32."""
    spec = make_spec(image_shape=(1, 1, 1), mean=(0.0,), std=(1 / 255,), n_tasks=1, n_classes=2, train_sizes=(2,))
    data = make_batch(np.array([2, 4], dtype=np.uint8).reshape(2, 1, 1, 1), np.array([0, 1]))
    stream = TensorStream(spec, data, data, ranges((2,)), ranges((2,)), seed=0, batch_size=2)
    augment = SimpleNamespace(normalize=lambda images: images.double(), scale=torch.ones(1))
    method = EwcOnline(OnePixel(), SimpleNamespace(gamma=1.0, e_lambda=1.0), spec, augment, None)
    method.end_task(0, stream)
    assert set(method.importance) == {"linear.weight", "linear.bias"}
    assert_close(method.importance["linear.weight"], [[21 / 32], [21 / 32]])
    assert_close(method.importance["linear.bias"], [3 / 32, 3 / 32])
    method.end_task(0, stream)  # gamma is 1: what came before counts in full
    assert_close(method.importance["linear.bias"], [6 / 32, 6 / 32])


# --- the mlp in numpy -------------------------------------------------------------------------------------------


def squared_gradients(net, image: np.ndarray, label: int) -> dict[str, np.ndarray]:
    """Return p(y|x) (d log p(y|x) / d theta)^2 of one sample, with the running statistics."""
    w = {name: value.detach().numpy().copy() for name, value in net.state_dict().items()}
    values, past = (image.reshape(-1) / 255 - MEAN) / STD, []
    for k in ("1", "2"):
        deviation = np.sqrt(w[f"norm{k}.running_var"] + EPS)
        linear = w[f"linear{k}.weight"] @ values + w[f"linear{k}.bias"]
        normal = (linear - w[f"norm{k}.running_mean"]) / deviation
        scaled = w[f"norm{k}.weight"] * normal + w[f"norm{k}.bias"]
        past.append((k, values, deviation, normal, scaled))
        values = np.maximum(scaled, 0)
    logits = w["classifier.weight"] @ values + w["classifier.bias"]
    p = np.exp(logits) / np.exp(logits).sum()
    error = np.eye(len(p))[label] - p
    gradients = {"classifier.weight": np.outer(error, values), "classifier.bias": error}
    error = w["classifier.weight"].T @ error
    for k, inputs, deviation, normal, scaled in reversed(past):
        error = error * (scaled > 0)
        gradients |= {f"norm{k}.weight": error * normal, f"norm{k}.bias": error}
        error = error * w[f"norm{k}.weight"] / deviation
        gradients |= {f"linear{k}.weight": np.outer(error, inputs), f"linear{k}.bias": error}
        error = w[f"linear{k}.weight"].T @ error
    return {name: p[label] * gradient**2 for name, gradient in gradients.items()}


def importance_in_numpy(net, stream, task: int) -> dict[str, np.ndarray]:
    data = stream.task_data(task)
    pairs = zip(data.images.numpy(), data.labels_host, strict=True)
    samples = [squared_gradients(net, image, label) for image, label in pairs]
    return {name: np.mean([sample[name] for sample in samples], 0) for name in samples[0]}


def trained_on_first_task(norm: str, **options):
    """Return a network whose running statistics and weights have moved, and a stream whose images are augmented."""
    augmentation = (Crop(1), Flip())
    spec = make_spec(image_shape=(1, 3, 3), mean=(MEAN,), std=(STD,), train_sizes=(6, 5), augmentation=augmentation)
    stream = make_stream(spec, seed=3)
    net, method = build_run(run_config("ewc_on", norm, hidden=4, dtype="float64", lr=0.3, **options), stream)
    method.grow()
    learn(method, stream, 0)
    with torch.no_grad():
        net.classifier.weight *= 6
    return net, method, stream


def learn(method, stream, task: int) -> None:
    method.net.train()
    for step, batch in enumerate(stream.batches(task, 0, 0)):
        if len(batch) > 1:
            method.step(batch, StepIndex(task, 10 * task + step))


@pytest.mark.parametrize("gamma", [0.0, 0.4])
@pytest.mark.parametrize("norm", ["bn", "adab2n"])
def test_importance_of_the_mlp_through_two_tasks(norm, gamma):
    """It decays by gamma, the anchor moves with every task, and the network stays as it is."""
    net, method, stream = trained_on_first_task(norm, gamma=gamma, e_lambda=0.5)
    before = weights_of(net)
    method.optimizer.zero_grad()
    method.end_task(0, stream)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    first = importance_in_numpy(net, stream, 0)
    psi = {"norms.psi.0"} if norm == "adab2n" else set()
    assert set(method.importance) == set(method.anchor) == set(first) | psi
    for name, value in first.items():
        assert_close(method.importance[name], value)
        assert value.max() > 1e-4, name
    for name in psi:  # evaluation uses the running statistics, where it has no part
        assert not method.importance[name].any()
    method.grow()
    learn(method, stream, 1)
    method.end_task(1, stream)
    second = importance_in_numpy(net, stream, 1)
    assert np.abs(second["linear1.weight"] - first["linear1.weight"]).max() > 1e-4
    for name in first:
        assert_close(method.importance[name], gamma * first[name] + second[name])
    for name, parameter in net.named_parameters():
        assert torch.equal(method.anchor[name], parameter)
        assert method.anchor[name].data_ptr() != parameter.data_ptr()


# --- the penalty ------------------------------------------------------------------------------------------------


def loss_of(method) -> dict[str, torch.Tensor]:
    outputs = {"current": make_output(torch.zeros(1, 4, dtype=torch.float64))}
    return method.loss({"current": make_samples([0])}, outputs, StepIndex(1, 9))


def test_penalty_by_hand():
    """3 (2 (0.5)^2 + 5 (-1)^2 + 4 (0.1)^2) = 3 (0.5 + 5 + 0.04); its gradient 2 3 F (theta - theta*)."""
    net = torch.nn.ParameterDict({"a": numbers(1.5, 1.0), "b": numbers(0.3)})
    spec, augment = make_spec(), SimpleNamespace(scale=torch.ones(1))
    method = EwcOnline(net, SimpleNamespace(gamma=1.0, e_lambda=3.0), spec, augment, None)
    assert set(loss_of(method)) == {"current"}
    method.importance = {"a": numbers(2.0, 5.0), "b": numbers(4.0)}
    method.anchor = {"a": numbers(1.0, 2.0), "b": numbers(0.2)}
    losses = loss_of(method)
    losses["ewc"].backward()
    assert_close(losses["current"].detach(), log(4))
    assert_close(losses["ewc"].detach(), 3 * 5.54)
    assert_close(net["a"].grad, [6 * 2 * 0.5, 6 * 5 * -1.0])
    assert_close(net["b"].grad, [6 * 4 * 0.1])
