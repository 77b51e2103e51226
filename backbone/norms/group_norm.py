"""`gn`: Group Normalization (Wu & He 2018), 32 groups as in the paper's experiments."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from utils.config.options import Option, integer
from utils.config.registry import NORMS
from utils.errors import RunFailed, UsageError

EPS = 1e-5
GROUPS = Option("groups", integer(1), "channel groups of the norms gn and cn", default=32)


class GroupNorm(nn.Module):
    """torch's group norm. It is no `nn.GroupNorm`: other libraries initialize those and fail without affine."""

    def __init__(self, groups: int, channels: int, *, affine: bool):
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        reject_single_values(a.numel() // (a.shape[0] * self.groups), RunFailed)
        return F.group_norm(a, self.groups, self.weight, self.bias, EPS)


def reject_single_values(values: int, error: type[Exception]) -> None:
    """Raise `error` where a group has only one value, which normalization would turn into zero."""
    if values == 1:
        raise error(
            "normalization of a single value is always zero: use another --norm, fewer --groups, "
            "or a larger image with a convolutional backbone"
        )


def check_groups(groups: int, channels: int, spatial: tuple[int, ...] | None) -> None:
    """Raise a UsageError if groups do not divide the channels, or have one value each."""
    if channels % groups:
        raise UsageError(
            f"{groups} groups do not divide {channels} channels; set --groups to a divisor, or choose a width of the "
            f"network that is a multiple of {groups}"
        )
    if spatial is not None:  # otherwise the first forward pass checks it
        reject_single_values(channels // groups * math.prod(spatial), UsageError)


def build_group_norm(groups: int, channels: int, spatial: tuple[int, ...] | None, *, affine: bool) -> GroupNorm:
    check_groups(groups, channels, spatial)
    return GroupNorm(groups, channels, affine=affine)


@NORMS.register("gn", help="group normalization, --groups groups", options=(GROUPS,))
def group_norm(channels: int, *, spatial: tuple[int, ...] | None, groups: int) -> GroupNorm:
    return build_group_norm(groups, channels, spatial, affine=True)
