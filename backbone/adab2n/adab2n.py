"""AdaB²N: Adaptive Balance of Batch Normalization (NeurIPS 2023), the whole algorithm of Section 4.

A batch of continual learning mixes current and replayed samples, N_t of every task t, N in all. BatchNorm weighs them
all alike, so the current task dominates its statistics. AdaB²N changes three things:

1. Training (Eq. 14). The batch statistics weigh the tasks by p_t = (phi_t + N_t) / (sum phi + N), where phi = exp(psi)
   is a learnable pseudo-count, one per layer and task. A sample of task t has the weight w_n = p_t / N_t:

       mu = sum_n w_n mean_hw(a_n)        sigma2 = sum_n w_n mean_hw((a_n - mu)^2)

2. Regularization (Eq. 15). A penalty, added to the loss with the weight lambda, keeps the batch statistics close to
   the running ones.
3. Running statistics, which are used at test time (Eq. 17). They move with a momentum eta_i between the exponential
   moving average of BatchNorm (kappa = 1) and the cumulative average (kappa = 0).

Where the paper and its released code differ in this, an option chooses, and its default follows the released code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from .any_batch_norm import AnyBatchNorm
from .weighted import SampleWeights, compute_dtype, weighted_batch_norm


def task_weights(psi: Tensor, counts: Tensor, absent_tasks: str = "counted") -> Tensor:
    """Return the weight of every task in the batch statistics (Eq. 14).

    Args:
        psi: (tasks,) logarithms of the pseudo-counts, or (tasks, layers) for several layers at once.
        counts: (tasks,) samples of every task in the batch.
        absent_tasks: Whether tasks without a sample are "counted" in the normalizer, so that the weights of the
            others sum to less than 1 (the released code), or "ignored" (the paper). Their own entries are not used.
    """
    counts = counts.view(-1, *[1] * (psi.dim() - 1))
    totals = psi.exp() + counts
    normalizer = totals if absent_tasks == "counted" else totals * (counts > 0)
    return totals / normalizer.sum(0)


def momentum_of_batch(i: Tensor, eta: float, kappa: float) -> Tensor:
    """Return the momentum eta_i of batch i, counted from 0, in float64 (Eq. 17).

    The paper defines eta_0 = eta^kappa and eta_i = eta_{i-1} / (eta_{i-1} + q) with q = (1 - eta)^kappa. Hence
    1 / eta_i = 1 + q / eta_{i-1}, which is a geometric series: 1 / eta_i = 1 + q + ... + q^(i-1) + q^i / eta_0.
    """
    i, q = i.double(), (1 - eta) ** kappa
    series = i if q == 1 else (1 - q**i) / (1 - q)
    return 1 / (series + q**i / eta**kappa)


def distance_to_running(batch: Tensor, running: Tensor, penalty_norm: str = "mean") -> Tensor:
    """Return the squared distance of (C,) batch statistics to the running ones (Eq. 15).

    Args:
        penalty_norm: "mean" over channels (the released code) or their "sum" (the paper).
    """
    squares = (batch - running).square()
    return squares.mean() if penalty_norm == "mean" else squares.sum()


class AdaB2N(AnyBatchNorm):
    """AdaB²N in place of BatchNorm, with BatchNorm's parameters and buffers, and `psi`.

    `with tasks(ids):` around a training forward pass says which task every sample belongs to; without it, the layer
    uses plain batch statistics. In eval mode it is BatchNorm. The running variance averages biased batch variances.

    Args:
        num_features: Number of channels.
        eps: Added to the variance.
        eta: Momentum of the exponential moving average, BatchNorm's `momentum`.
        affine: Whether there is a learnable scale and shift.
        kappa: Interpolates the momentum between the cumulative average (0) and the exponential moving average (1).
        absent_tasks: See `task_weights`.
        penalty_norm: See `distance_to_running`.
        eta_start: Which element of the momentum sequence the first batch has: "eta0" (the released code) or "eta1"
            (the paper).

    Example:
        >>> layer = AdaB2N2d(3)
        >>> with tasks([0, 0, 1]):
        ...     out = layer(torch.randn(3, 3, 8, 8))
        >>> layer.penalty().shape, len(layer.psi)
        (torch.Size([]), 2)
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        eta: float = 0.1,
        affine: bool = True,
        *,
        kappa: float = 0.7,
        absent_tasks: str = "counted",
        penalty_norm: str = "mean",
        eta_start: str = "eta0",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(num_features, eps, eta, affine, device=device, dtype=dtype)
        _check_choice("absent_tasks", absent_tasks, "counted", "ignored")
        _check_choice("penalty_norm", penalty_norm, "mean", "sum")
        _check_choice("eta_start", eta_start, "eta0", "eta1")
        if not 0 <= kappa <= 1:
            raise ValueError(f"kappa must be from 0 to 1 (got {kappa})")
        self.eta, self.kappa = eta, kappa
        self.absent_tasks, self.penalty_norm, self.eta_start = absent_tasks, penalty_norm, eta_start
        self.psi = nn.ParameterList()  # one number per task seen
        self.n_returned = 0  # how many of them `new_parameters(model)` has returned
        self.task_weights: Tensor | None = None  # p_t of the last batch
        self.sample_weights: Tensor | None = None  # w_n of the present batch; None: plain batch statistics
        self.last_statistics: dict[str, Tensor] = {}  # mu and sigma2 of the last training forward pass
        _layers.add(self)

    def forward(self, a: Tensor) -> Tensor:
        if not self.training:
            return super().forward(a)
        self._check_input_dim(a)
        if a.numel() <= a.shape[1]:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(a.shape)}")
        if self.sample_weights is not None and len(self.sample_weights) != len(a):
            raise ValueError(f"tasks() has {len(self.sample_weights)} ids for a batch of {len(a)} samples")
        dtype = compute_dtype(a)
        scale = torch.ones_like(self.running_mean) if self.weight is None else self.weight
        shift = torch.zeros_like(self.running_mean) if self.bias is None else self.bias
        weights = SampleWeights(self.sample_weights)
        out, mu, sigma2, *_ = weighted_batch_norm(a, weights, scale.to(dtype), shift.to(dtype), self.eps)
        i = self.num_batches_tracked + (self.eta_start == "eta1")
        momentum = momentum_of_batch(i, self.eta, self.kappa).to(self.running_mean.dtype)
        with torch.no_grad():
            self.running_mean.lerp_(mu.to(momentum.dtype), momentum)
            self.running_var.lerp_(sigma2.to(momentum.dtype), momentum)
            self.num_batches_tracked.add_(1)
        self.last_statistics["mu"], self.last_statistics["sigma2"] = mu, sigma2
        return out

    def penalty(self) -> Tensor:
        """Return the penalty of the last training forward pass (Eq. 15), with gradients through mu and sigma2.

        The running statistics are those after that batch's update, so call it before the next forward pass.
        """
        if not self.last_statistics:
            raise ValueError("there is no penalty before the first forward pass in training mode")
        of_mean = distance_to_running(self.last_statistics["mu"], self.running_mean, self.penalty_norm)
        return of_mean + distance_to_running(self.last_statistics["sigma2"], self.running_var, self.penalty_norm)

    def set_tasks(self, batch: TaskIds) -> None:
        """Set the weights w_n = p_t / N_t of a batch. A task that is new gets psi = 0."""
        self.grow(batch.n_tasks)
        psi = torch.stack(list(self.psi))
        ids = batch.ids.to(psi.device)
        counts = torch.bincount(ids, minlength=len(psi))
        self.task_weights = task_weights(psi, counts.to(psi.dtype), self.absent_tasks)
        self.sample_weights = (self.task_weights / counts.clamp(min=1)).to(compute_dtype(psi))[ids]

    def clear_tasks(self) -> None:
        self.sample_weights = None

    def grow(self, n_tasks: int) -> None:
        """Have one psi per task, 0 at first. `new_parameters` returns those that the optimizer lacks."""
        while len(self.psi) < n_tasks:
            self.psi.append(nn.Parameter(self.running_mean.new_zeros(())))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.grow(sum(key.startswith(f"{prefix}psi.") for key in state_dict))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kappa={self.kappa}"

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles start without the results of the last forward pass, which belong to its graph."""
        return self.__dict__ | {"task_weights": None, "sample_weights": None, "last_statistics": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _layers.add(self)


class AdaB2N1d(AdaB2N):
    """AdaB²N for (N, C) or (N, C, L) inputs, in place of `nn.BatchNorm1d`."""

    _check_input_dim = nn.BatchNorm1d._check_input_dim


class AdaB2N2d(AdaB2N):
    """AdaB²N for (N, C, H, W) inputs, in place of `nn.BatchNorm2d`."""

    _check_input_dim = nn.BatchNorm2d._check_input_dim


class AdaB2N3d(AdaB2N):
    """AdaB²N for (N, C, D, H, W) inputs, in place of `nn.BatchNorm3d`."""

    _check_input_dim = nn.BatchNorm3d._check_input_dim


# --- which task every sample belongs to -------------------------------------------------------------------------------

_layers: WeakSet[Any] = WeakSet()  # all layers of the process, which `tasks` informs


class TaskIds:
    """The tasks of the samples of one batch.

    Attributes:
        ids: (N,) integers.
        n_tasks: Number of tasks up to the newest one in the batch.
        replayed: (N,) whether a sample comes from the memory.
    """

    def __init__(self, ids: Any, replayed: Any = None):
        self.ids = torch.as_tensor(ids)
        is_integer = not (self.ids.is_floating_point() or self.ids.is_complex() or self.ids.dtype == torch.bool)
        if self.ids.dim() != 1 or not len(self.ids) or not is_integer or self.ids.min() < 0:
            shape, dtype = tuple(self.ids.shape), self.ids.dtype
            raise ValueError(f"tasks() takes one integer from 0 on per sample (got shape {shape} of {dtype})")
        self.ids = self.ids.long()
        self.n_tasks = int(self.ids.max()) + 1
        self.replayed = self.ids < self.n_tasks - 1 if replayed is None else torch.as_tensor(replayed, dtype=torch.bool)
        if self.replayed.shape != self.ids.shape:
            raise ValueError(f"tasks() takes one `replayed` per sample (got {tuple(self.replayed.shape)})")


@contextmanager
def tasks(ids: Any, replayed: Any = None) -> Iterator[None]:
    """Set the task of every sample for the training forward pass within.

    Task weights are computed on entering, outside a compiled forward pass. Enter it once per forward pass. It
    informs all layers of the process that are in training mode: put other models, such as teachers, into eval mode. New
    ids get psi = 0, see `new_parameters`.

    Args:
        ids: (N,) integers from 0 on, a tensor or a list.
        replayed: (N,) booleans: the samples from the memory, which `TBBN` treats differently (tbbn.py). By default,
            those of tasks before the newest one in the batch.
    """
    batch = TaskIds(ids, replayed)
    layers = [layer for layer in _layers if layer.training]
    for layer in layers:
        layer.set_tasks(batch)
    try:
        yield
    finally:
        for layer in layers:
            layer.clear_tasks()


def _check_choice(name: str, value: str, *choices: str) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)} (got {value!r})")
