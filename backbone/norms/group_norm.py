"""`gn`: Group Normalization (Wu & He 2018), 32 groups as in the paper's experiments."""

import math

from torch import nn

from utils.config.options import Option, integer
from utils.config.registry import NORMS
from utils.errors import UsageError

EPS = 1e-5
GROUPS = Option("groups", integer(1), "channel groups of the norms gn and cn", default=32)


def grouped(groups: int, channels: int, spatial: tuple[int, ...], *, affine: bool) -> nn.GroupNorm:
    if channels % groups:
        raise UsageError(
            f"{groups} groups do not divide {channels} channels: set --groups to a divisor, "
            f"or --num_filters to a multiple of {groups}"
        )
    if channels // groups * math.prod(spatial) == 1:
        raise UsageError(
            "normalization of a single value is always zero: use another --norm, fewer --groups, "
            "or a larger image with a convolutional backbone"
        )
    return nn.GroupNorm(groups, channels, eps=EPS, affine=affine)


@NORMS.register("gn", help="group normalization, --groups groups", options=(GROUPS,))
def group_norm(channels, *, spatial, shared, groups):
    return grouped(groups, channels, spatial, affine=True)
