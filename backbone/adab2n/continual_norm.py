"""CN: Continual Normalization (Pham et al. 2022), group normalization without affine, then batch normalization."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from .any_batch_norm import AnyBatchNorm


class CN(AnyBatchNorm):
    """Continual Normalization for inputs of any number of dimensions, with BatchNorm's parameters and buffers.

    Args:
        num_features: Number of channels.
        groups: Number of groups; must divide the channels.
        eps, momentum, affine: As for `nn.BatchNorm2d`. The scale and shift of CN's own definition are learned; the
            AdaB²N paper compares with `affine=False`.

    Example:
        >>> CN(8, groups=4)(torch.randn(2, 8, 5, 5)).shape
        torch.Size([2, 8, 5, 5])
    """

    def __init__(
        self,
        num_features: int,
        groups: int = 32,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        **options: Any,
    ):
        if num_features % groups:
            raise ValueError(f"{groups} groups do not divide {num_features} channels; set groups to a divisor")
        super().__init__(num_features, eps, momentum, affine, **options)
        self.groups = groups

    def forward(self, a: Tensor) -> Tensor:
        return super().forward(self.normalize_groups(a))

    def normalize_groups(self, a: Tensor) -> Tensor:
        return F.group_norm(a, self.groups, eps=self.eps)
