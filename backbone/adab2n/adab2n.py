"""AdaB²N: Adaptive Balance of Batch Normalization (NeurIPS 2023), the whole algorithm of Section 4.

A batch of continual learning mixes current and replayed samples, N_t of every task t. BatchNorm weighs them all alike,
so the current task dominates its statistics. AdaB²N changes three things:

1. Training (Eq. 14). The batch statistics weigh the tasks by p_t = (phi_t + N_t) / (sum phi + N), where phi = exp(psi)
   and psi is one learnable number per layer and task. A sample of task t has the weight w_n = p_t / N_t:

       mu = sum_n w_n mean_hw(a_n)        sigma2 = sum_n w_n mean_hw((a_n - mu)^2)

2. Regularization (Eq. 15). A penalty, added to the loss with the weight lambda, keeps the batch statistics close to
   the running ones.
3. Testing (Eq. 17). The running statistics move with a momentum eta_i between the exponential moving average of
   BatchNorm (kappa = 1) and the cumulative average (kappa = 0).

Where the paper and its released code differ, an option chooses, and its default follows the released code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .weighted import SampleWeights, weighted_batch_norm


def task_weights(psi: Tensor, counts: Tensor, absent_tasks: str = "counted") -> Tensor:
    """Return the weight of every task in the batch statistics (Eq. 14).

    Args:
        psi: (tasks,) or (tasks, layers), the learnable log-concentrations.
        counts: (tasks,) samples of every task in the batch.
        absent_tasks: Whether tasks without a sample are "counted" in the normalizer, so that the weights of the
            others sum to less than 1 (the released code), or "ignored" (the paper).
    """
    counts = counts.view(-1, *[1] * (psi.dim() - 1))
    concentrations = psi.exp() + counts
    counted = concentrations if absent_tasks == "counted" else concentrations * (counts > 0)
    return concentrations / counted.sum(0)


def first_momentum(eta: float, kappa: float, eta_start: str = "eta0") -> Tensor:
    """Return the momentum of the first batch: eta_0 = eta^kappa (the released code), or eta_1 (the paper)."""
    momentum = torch.tensor(eta**kappa, dtype=torch.float64)
    return momentum if eta_start == "eta0" else next_momentum(momentum, eta, kappa)


def next_momentum(momentum: Tensor, eta: float, kappa: float) -> Tensor:
    """Return the momentum of the next batch: eta_i = eta_{i-1} / (eta_{i-1} + (1 - eta)^kappa) (Eq. 17)."""
    return momentum / (momentum + (1 - eta) ** kappa)


def distance_to_running(batch: Tensor, running: Tensor, penalty_norm: str = "mean") -> Tensor:
    """Return the squared distance of (C,) batch statistics to the running ones (Eq. 15).

    Args:
        penalty_norm: "mean" over channels (the released code) or their "sum" (the paper).
    """
    squares = (batch - running).square()
    return squares.mean() if penalty_norm == "mean" else squares.sum()


_current_tasks: Tensor | None = None


@contextmanager
def tasks(ids: Tensor | None) -> Iterator[None]:
    """Say which task every sample of the forward passes within belongs to: (N,) integers from 0."""
    global _current_tasks
    before, _current_tasks = _current_tasks, ids
    try:
        yield
    finally:
        _current_tasks = before


class AdaB2N(nn.Module):
    """AdaB²N for one layer, in place of BatchNorm1d, 2d or 3d, with BatchNorm's parameters and buffers.

    Without `tasks(ids)` around it, a training forward pass uses plain batch statistics. The running variance is biased.

    Args:
        num_features: Number of channels.
        eps: Added to the variance.
        eta: Momentum of the exponential moving average, BatchNorm's `momentum`.
        kappa: Between the cumulative average (0) and the exponential moving average (1).
        absent_tasks: See `task_weights`.
        penalty_norm: See `distance_to_running`.
        eta_start: See `first_momentum`.

    Example:
        >>> layer = AdaB2N(3)
        >>> with tasks(torch.tensor([0, 0, 1])):
        ...     out = layer(torch.randn(3, 3, 8, 8))
        >>> layer.penalty.shape, len(layer.psi)
        (torch.Size([]), 2)
    """

    weight: nn.Parameter
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    next_eta: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        eta: float = 0.1,
        kappa: float = 0.7,
        *,
        absent_tasks: str = "counted",
        penalty_norm: str = "mean",
        eta_start: str = "eta0",
    ):
        super().__init__()
        self.eps, self.eta, self.kappa = eps, eta, kappa
        self.absent_tasks, self.penalty_norm = absent_tasks, penalty_norm
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.psi = nn.ParameterList()  # one number per task seen
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))
        self.register_buffer("next_eta", first_momentum(eta, kappa, eta_start))
        self.penalty: Tensor | None = None  # of the last training forward pass, differentiable

    def forward(self, a: Tensor) -> Tensor:
        if not self.training:
            return nn.functional.batch_norm(
                a, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        by = SampleWeights(self.sample_weights(_current_tasks))
        impl = "reference" if torch.compiler.is_compiling() else "auto"
        out, mu, sigma2, *_ = weighted_batch_norm(a, by, self.weight, self.bias, self.eps, impl)
        with torch.no_grad():
            momentum = self.next_eta.to(mu.dtype)
            self.running_mean.lerp_(mu, momentum)
            self.running_var.lerp_(sigma2, momentum)
            self.num_batches_tracked.add_(1)
            self.next_eta.copy_(next_momentum(self.next_eta, self.eta, self.kappa))
        # The running statistics after this batch's update, without gradient.
        of_mean = distance_to_running(mu, self.running_mean, self.penalty_norm)
        self.penalty = of_mean + distance_to_running(sigma2, self.running_var, self.penalty_norm)
        return out

    def sample_weights(self, ids: Tensor | None) -> Tensor | None:
        """Return w_n = p_t / N_t for every sample n of a task t, or None for plain batch statistics."""
        if ids is None:
            return None
        self.grow(int(ids.max()) + 1)
        psi = torch.stack(list(self.psi))
        counts = torch.bincount(ids, minlength=len(psi))
        return (task_weights(psi, counts.to(psi.dtype), self.absent_tasks) / counts.clamp(min=1))[ids]

    def grow(self, n_tasks: int) -> None:
        """Add psi = 0 for new tasks; the optimizer must be given the new parameters."""
        while len(self.psi) < n_tasks:
            self.psi.append(nn.Parameter(self.weight.new_zeros(())))
