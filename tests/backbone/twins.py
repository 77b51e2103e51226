"""A layer and its twin, step by step."""

import torch
from torch import nn

from tests.helpers import assert_close


def random_inputs(count: int, shape: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [2 * torch.randn(shape, dtype=torch.float64, generator=draw) + 1 for _ in range(count)]


def give_random_affine(*layers: nn.Module) -> None:
    """The same parameters, away from 1 and 0, to all of the layers."""
    for layer in layers:
        draw = torch.Generator().manual_seed(7)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, 0.5, 1.0, generator=draw)


def assert_same_outputs_and_gradients(layer, twin, x, forward=lambda layer, x: layer(x)) -> None:
    direction = torch.linspace(-1, 2, x.numel(), dtype=x.dtype).sin().view_as(x)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = forward(layer, mine), twin(theirs)
    assert_close(out, expected)
    (out * direction).sum().backward()
    (expected * direction).sum().backward()
    assert_close(mine.grad, theirs.grad)


def assert_same_steps(layer, twin, inputs, forward=lambda layer, x: layer(x)) -> None:
    """Compare outputs, input gradients and parameters over a few steps of gradient descent."""
    for x in inputs:
        assert_same_outputs_and_gradients(layer, twin, x, forward)
        with torch.no_grad():
            for own, other in zip(layer.parameters(), twin.parameters(), strict=True):
                assert_close(own.grad, other.grad, atol=1e-10)
                own -= 0.01 * own.grad
                other -= 0.01 * other.grad
                own.grad = other.grad = None
