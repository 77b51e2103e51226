"""`gn`: Group Normalization (Wu & He 2018), 32 groups as in the paper's experiments."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from utils.config.options import Option, integer
from utils.config.registry import NORMS
from utils.errors import UsageError

EPS = 1e-5
GROUPS = Option("groups", integer(1), "Channel groups of the norms gn and cn.", default=32)


class GroupNorm(nn.Module):
    """torch's group norm. It is no `nn.GroupNorm`: other libraries initialize those and fail without affine."""

    def __init__(self, groups: int, channels: int, spatial: tuple[int, ...] | None, *, affine: bool = True):
        super().__init__()
        check_groups(groups, channels, spatial)
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return F.group_norm(a, self.groups, self.weight, self.bias, EPS)


def check_groups(groups: int, channels: int, spatial: tuple[int, ...] | None) -> None:
    """Raise a UsageError if groups do not divide the channels, or have one value each."""
    if channels % groups:
        advice = f"set --groups to a divisor, or choose a width of the network that is a multiple of {groups}"
        raise UsageError(f"{groups} groups do not divide {channels} channels; {advice}")
    if spatial is not None and channels // groups * math.prod(spatial) == 1:
        advice = "use another --norm, fewer --groups, or a larger image with a convolutional backbone"
        raise UsageError(f"normalization of a single value is always zero: {advice}")


@NORMS.register("gn", help="group normalization, --groups groups", options=(GROUPS,))
def group_norm(channels: int, *, spatial: tuple[int, ...] | None, groups: int) -> GroupNorm:
    return GroupNorm(groups, channels, spatial)
