"""Online EWC: the importance of parameters and its penalty by hand."""

from math import log
from types import SimpleNamespace

import numpy as np
import torch

from models.ewc_on import EwcOnline
from tests.helpers import assert_close, make_output, make_samples, make_spec
from utils.data.stream import TensorStream, make_batch, ranges
from utils.step import StepIndex


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
    method = EwcOnline(OnePixel(), SimpleNamespace(gamma=0.5, e_lambda=1.0), spec, augment, None)
    method.end_task(0, stream)
    assert set(method.importance) == {"linear.weight", "linear.bias"}
    assert_close(method.importance["linear.weight"], [[21 / 32], [21 / 32]])
    assert_close(method.importance["linear.bias"], [3 / 32, 3 / 32])
    method.end_task(0, stream)  # gamma is 1/2: what came before counts half
    assert_close(method.importance["linear.bias"], [4.5 / 32, 4.5 / 32])
    assert torch.equal(method.anchor["linear.bias"], numbers(0.0, log(3)))


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
