"""TBBN: Task-Balanced Batch Normalization (Cha et al. 2023), as its authors released it.

With T tasks before the current one, B_c current and B_p replayed samples, a batch is cut into r splits. r is
T B_c / B_p, lowered to the largest common divisor of B_c and B_p that is not above it. Current sample i belongs to
split i mod r, and every split holds all replayed samples, so that all tasks have about the same share of a split. Each
split is normalized with its own statistics. The output of a replayed sample is the mean of its outputs in the splits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .adab2n import TaskIds, _layers


def number_of_splits(n_current: int, n_replayed: int, tasks_before: int) -> int:
    """Return r, at least 1."""
    if not n_current or not n_replayed:
        return 1
    common = math.gcd(n_current, n_replayed)
    largest = n_current * tasks_before // n_replayed
    return max((r for r in range(1, common + 1) if common % r == 0 and r <= largest), default=1)


class TBBN(nn.modules.batchnorm._BatchNorm):
    """Task-Balanced BatchNorm for inputs of any number of dimensions, with BatchNorm's parameters and buffers.

    `with tasks(ids):` around a training forward pass says which samples are replayed; without it, or in the first
    task, the layer is BatchNorm.

    Args:
        num_features, eps, momentum, affine: As for `nn.BatchNorm2d`.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True, **options: Any
    ):
        super().__init__(num_features, eps, momentum, affine, **options)
        self.current: Tensor | None = None  # (B_c,) places of the current samples; None: plain BatchNorm
        self.replayed: Tensor | None = None
        self.splits = 1
        _layers.add(self)

    def set_tasks(self, batch: TaskIds) -> None:
        """Set the splits of a batch."""
        current, replayed = (~batch.replayed).nonzero().squeeze(1), batch.replayed.nonzero().squeeze(1)
        self.set_splits(current, replayed, batch.n_tasks - 1)

    def set_splits(self, current: Tensor, replayed: Tensor, tasks_before: int) -> None:
        """Set the places of current and replayed samples in the batch, and the number of tasks before this one."""
        self.splits = number_of_splits(len(current), len(replayed), tasks_before)
        if tasks_before and len(replayed):
            device = self.running_mean.device
            self.current, self.replayed = current.to(device), replayed.to(device)

    def clear_tasks(self) -> None:
        self.current = self.replayed = None

    def forward(self, a: Tensor) -> Tensor:
        if not self.training or self.current is None or self.replayed is None:
            return super().forward(a)
        if len(a) != len(self.current) + len(self.replayed):
            raise ValueError(f"tasks() has {len(self.current) + len(self.replayed)} ids for {len(a)} samples")
        r, per_split = self.splits, len(self.current) // self.splits
        current = a[self.current].unflatten(0, (per_split, r)).transpose(0, 1)  # sample i belongs to split i mod r
        samples = torch.cat([current, a[self.replayed].expand(r, -1, *a.shape[1:])], 1)  # (r, samples, C, ...)
        over = [1, *range(3, samples.dim())]
        var, mean = torch.var_mean(samples, over, correction=0, keepdim=True)
        unit = (samples - mean) * torch.rsqrt(var + self.eps)
        out = torch.empty_like(a)
        out[self.current] = unit[:, :per_split].transpose(0, 1).flatten(0, 1)
        out[self.replayed] = unit[:, per_split:].mean(0)
        self._update_running(mean.flatten(1).mean(0), var.flatten(1).mean(0), samples[0].numel() // a.shape[1])
        if self.weight is None:
            return out
        shape = (-1, *[1] * (a.dim() - 2))
        return out * self.weight.view(shape) + self.bias.view(shape)

    @torch.no_grad()
    def _update_running(self, mean: Tensor, var: Tensor, count: int) -> None:
        assert self.momentum is not None
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var * (count / (count - 1)), self.momentum)

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any number of dimensions."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _layers.add(self)
