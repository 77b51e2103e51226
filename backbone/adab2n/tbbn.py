"""TBBN: Task-Balanced Batch Normalization (Cha et al. 2023), as its authors released it.

With T tasks before the current one, B_c current and B_p replayed samples, a batch is cut into r splits. r is
T B_c / B_p, lowered to the largest common divisor of B_c and B_p that is not above it. Current sample i belongs to
split i mod r, and every split holds all replayed samples, so that all tasks have about the same share of a split. Each
split is normalized with its own statistics. The output of a replayed sample is the mean of its outputs in the splits.
The running statistics move to the mean over the splits of their means and unbiased variances.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .adab2n import TaskIds, _layers
from .any_batch_norm import AnyBatchNorm
from .weighted import compute_dtype


def number_of_splits(n_current: int, n_replayed: int, tasks_before: int) -> int:
    """Return r, at least 1."""
    if not n_current or not n_replayed:
        return 1
    common = math.gcd(n_current, n_replayed)
    largest = n_current * tasks_before // n_replayed
    return max((r for r in range(1, common + 1) if common % r == 0 and r <= largest), default=1)


class SplitNormalized(NamedTuple):
    """Outputs before scale and shift, and what the running statistics move to."""

    current: Tensor
    replayed: Tensor
    running_mean: Tensor  # (C,), without gradient
    running_var: Tensor


def normalize_splits(current: Tensor, replayed: Tensor, splits: int, eps: float) -> SplitNormalized:
    """Normalize current samples in splits, each together with all replayed samples.

    The replayed samples are not repeated for every split: their statistics are pooled with those of each split, and the
    mean of their outputs over the splits is one multiplication and addition.
    """
    dtype, space = compute_dtype(current), range(2, current.dim())
    x, old = current.to(dtype).unflatten(0, (-1, splits)), replayed.to(dtype)  # sample i belongs to split i mod r
    x_var, x_mean = torch.var_mean(x, [0, *(dim + 1 for dim in space)], correction=0)  # (splits, C)
    old_var, old_mean = torch.var_mean(old, [0, *space], correction=0)  # (C,)
    share = len(x) / (len(x) + len(old))
    mean = share * x_mean + (1 - share) * old_mean
    var = share * x_var + (1 - share) * old_var + share * (1 - share) * (x_mean - old_mean).square()
    scale = torch.rsqrt(var + eps)
    shift = -mean * scale
    in_space = (..., *[None] * len(space))
    x = x * scale[in_space] + shift[in_space]
    old = old * scale.mean(0)[in_space] + shift.mean(0)[in_space]
    count = (len(x) + len(old)) * math.prod(current.shape[2:])
    running_var = var.detach().mean(0) * (count / (count - 1))
    return SplitNormalized(x.flatten(0, 1), old, mean.detach().mean(0), running_var)


class TBBN(AnyBatchNorm):
    """Task-Balanced BatchNorm for inputs of any number of dimensions, with BatchNorm's parameters and buffers.

    `with tasks(ids):` around a training forward pass says which samples are replayed; without it, or in the first
    task, the layer is BatchNorm.

    Args:
        num_features, eps, momentum, affine: As for `nn.BatchNorm2d`.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True, **options: Any
    ):
        super().__init__(num_features, eps, momentum, affine, **options)
        self.current: Tensor | None = None  # (B_c,) places of the current samples; None: plain BatchNorm
        self.replayed: Tensor | None = None
        self.splits = 1
        _layers.add(self)

    def set_tasks(self, batch: TaskIds) -> None:
        """Set the places of current and replayed samples in a batch, and the number of splits."""
        current, replayed = (~batch.replayed).nonzero().squeeze(1), batch.replayed.nonzero().squeeze(1)
        self.splits = number_of_splits(len(current), len(replayed), batch.n_tasks - 1)
        if batch.n_tasks > 1 and len(replayed):
            device = self.running_mean.device
            self.current, self.replayed = current.to(device), replayed.to(device)

    def clear_tasks(self) -> None:
        self.current = self.replayed = None

    def forward(self, a: Tensor) -> Tensor:
        if not self.training or self.current is None or self.replayed is None:
            return super().forward(a)
        if len(a) != len(self.current) + len(self.replayed):
            raise ValueError(f"tasks() has {len(self.current) + len(self.replayed)} ids for {len(a)} samples")
        result = normalize_splits(a[self.current], a[self.replayed], self.splits, self.eps)
        out = torch.empty_like(a, dtype=result.current.dtype)
        out[self.current], out[self.replayed] = result.current, result.replayed
        return self.finish(out, result).to(a.dtype)

    def finish(self, out: Tensor, result: SplitNormalized) -> Tensor:
        """Return the outputs with scale and shift; the running statistics move."""
        with torch.no_grad():
            assert self.momentum is not None
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(result.running_mean, self.momentum)
            self.running_var.lerp_(result.running_var, self.momentum)
        if self.weight is None:
            return out
        shape = (-1, *[1] * (out.dim() - 2))
        return out * self.weight.view(shape) + self.bias.view(shape)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _layers.add(self)
