"""Normalization with statistics in which sample n has weight w_n: the primitive under the batch-norm family.

    mu = sum_n w_n mean_hw(a_n)        sigma2 = sum_n w_n mean_hw((a_n - c_n)^2)

With w_n = 1/N and c_n = mu this is Batch Normalization (Eq. 2 of the paper); weights of tasks make it AdaB2N's
(Eq. 14). The work falls in three: moments of every sample (heavy, reads the activation), the small
differentiable part that turns moments and weights into mu and sigma2 (every switch lives there), and the
normalization itself (heavy). This is the reference form, in plain tensor operations; `fused` computes the same
numbers with BN's memory traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import NamedTuple

import torch


class SampleWeights(NamedTuple):
    """How much every sample of a batch counts.

    weights: (N,) non-negative, differentiable; None means 1/N each.
    same_group: (N, N) symmetric matrix that averages over the samples of one's own group. Given, the variance is the
        mixture of within-group variances; None, it is taken about the mixture's mean.
    balanced_affine: the gradients of gamma and beta weigh sample n by N w_n too (TBBN).
    running: (N,) weights of the statistics that the running ones learn from; None: they take the normalizing ones.
    """

    weights: torch.Tensor | None = None
    same_group: torch.Tensor | None = None
    balanced_affine: bool = False
    running: torch.Tensor | None = None


UNIFORM = SampleWeights()


class Normalized(NamedTuple):
    out: torch.Tensor
    mu: torch.Tensor  # (C,)
    sigma2: torch.Tensor  # (C,)
    running_mu: torch.Tensor  # (C,), without gradient if they have weights of their own
    running_sigma2: torch.Tensor


def compute_dtype(a: torch.Tensor) -> torch.dtype:
    """Statistics of half-precision activations are taken in float32."""
    return torch.promote_types(a.dtype, torch.float32)


def no_autocast(device: torch.device) -> AbstractContextManager:
    """Statistics, weights and penalties are not for half precision."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def outside_autocast(function: Callable) -> Callable:
    """For a function of an activation."""

    @wraps(function)
    def run(a: torch.Tensor, *arguments, **keywords):
        with no_autocast(a.device):
            return function(a, *arguments, **keywords)

    return run


def sample_moments(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A (C,) point near the channels' means, and of every sample the (N, C) mean relative to it and the variance.

    Relative, because the differences of means that are large would be lost to rounding.
    """
    flat = a.reshape(a.shape[0], a.shape[1], -1)
    origin = flat[0].mean(1).detach()
    flat = flat - origin.unsqueeze(1)
    mean = flat.mean(2)
    return origin, mean, (flat - mean.unsqueeze(2)).square().mean(2)


def filled_weights(weights: torch.Tensor | None, like: torch.Tensor, samples: int) -> torch.Tensor:
    return like.new_full((samples,), 1 / samples) if weights is None else weights


def weighted_statistics(
    origin: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, weights: torch.Tensor, same_group: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, C) sample moments, the means relative to `origin`, to (C,) statistics.

    mean_hw((a_n - c)^2) is var_n + (mean_n - c)^2. Weights that sum to less than 1 pull mu towards 0.
    """
    relative_mu = _weighted_sum(weights, mean) - origin * (1 - weights.sum())
    center = relative_mu if same_group is None else same_group @ mean
    return origin + relative_mu, _weighted_sum(weights, var + (mean - center).square())


def _weighted_sum(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """(N,) weights, (N, C) values. A compiler makes it part of a kernel, where a product would be a library's call."""
    return (weights.unsqueeze(1) * values).sum(0) if torch.compiler.is_compiling() else weights @ values


@outside_autocast
def reference(a: torch.Tensor, by: SampleWeights, gamma: torch.Tensor, beta: torch.Tensor, eps: float) -> Normalized:
    """Differentiable in the activation, the weights, gamma and beta, also through mu and sigma2."""
    dtype = a.dtype
    a = a.to(compute_dtype(a))
    space = (1,) * (a.dim() - 2)
    origin, mean, var = sample_moments(a)
    weights = filled_weights(by.weights, mean, len(mean))
    running = mu, sigma2 = weighted_statistics(origin, mean, var, weights, by.same_group)
    if by.running is not None:
        running = weighted_statistics(origin, mean.detach(), var.detach(), by.running, None)
    unit = (a - mu.view(1, -1, *space)) * torch.rsqrt(sigma2 + eps).view(1, -1, *space)
    if by.balanced_affine:
        out = unit * gamma.detach().view(1, -1, *space) + beta.detach().view(1, -1, *space)
        out = out + _balanced_affine_gradient(unit, weights, gamma, beta)
    else:
        out = unit * gamma.view(1, -1, *space) + beta.view(1, -1, *space)
    return Normalized(out.to(dtype), mu, sigma2, *running)


def _balanced_affine_gradient(unit, weights, gamma, beta) -> torch.Tensor:
    """Zero in value; its gradient to gamma and beta weighs sample n by N w_n."""
    space = (1,) * (unit.dim() - 2)
    gamma, beta = ((p - p.detach()).view(1, -1, *space) for p in (gamma, beta))
    return (unit.detach() * gamma + beta) * (len(weights) * weights.detach()).view(-1, 1, *space)
