"""Normalization with statistics in which sample n has weight w_n: the primitive under the batch-norm family.

    mu = sum_n w_n mean_hw(a_n)        sigma2 = sum_n w_n mean_hw((a_n - c_n)^2)

With w_n = 1/N and c_n = mu this is Batch Normalization (Eq. 2 of the paper); task weights make it AdaB2N's
(Eq. 14). The work falls in three: moments of every sample (heavy, reads the activation), the small
differentiable part that turns moments and weights into mu and sigma2 (every switch lives there), and the
normalization itself (heavy).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SampleWeights:
    """How much every sample of a batch counts.

    weights: (N,) non-negative, differentiable; None means 1/N each.
    same_task: (N, N) matrix that averages over the samples of one's own task. Given, the variance is the
        mixture of within-task variances; None, it is taken about the mixture's mean.
    """

    weights: torch.Tensor | None = None
    same_task: torch.Tensor | None = None


UNIFORM = SampleWeights()


def sample_moments(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and (biased) variance over space of every sample and channel: two (N, C) tensors."""
    flat = a.flatten(2) if a.dim() > 2 else a.unsqueeze(2)
    mean = flat.mean(2)
    return mean, (flat - mean.unsqueeze(2)).square().mean(2)


def weighted_statistics(mean: torch.Tensor, var: torch.Tensor, by: SampleWeights) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, C) sample moments to (C,) statistics. mean_hw((a_n - c)^2) is var_n + (mean_n - c)^2."""
    weights = mean.new_full((mean.shape[0],), 1 / mean.shape[0]) if by.weights is None else by.weights
    mu = weights @ mean
    center = mu if by.same_task is None else by.same_task @ mean
    return mu, weights @ (var + (mean - center).square())


def normalize(
    a: torch.Tensor, mu: torch.Tensor, sigma2: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, eps: float
) -> torch.Tensor:
    shape = (1, -1) + (1,) * (a.dim() - 2)
    scale = gamma * torch.rsqrt(sigma2 + eps)
    return (a - mu.view(shape)) * scale.view(shape) + beta.view(shape)


def weighted_batch_norm(
    a: torch.Tensor, by: SampleWeights, gamma: torch.Tensor, beta: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(output, mu, sigma2), differentiable in the activation, the weights, gamma and beta."""
    mu, sigma2 = weighted_statistics(*sample_moments(a), by)
    return normalize(a, mu, sigma2, gamma, beta, eps), mu, sigma2
