"""`in`: Instance Normalization (Ulyanov et al. 2016), group normalization with one group per channel."""

import math

from backbone.norms.group_norm import grouped
from utils.errors import UsageError
from utils.options import ByFidelity, Option, choice
from utils.registry import NORMS

AFFINE = Option(
    "in_affine",
    choice("none", "channel"),
    "scale and shift of in: none, or one per channel",
    default=ByFidelity(official="none", paper="channel"),
)


@NORMS.register("in", help="instance normalization", options=(AFFINE,))
def instance_norm(channels, *, spatial, shared, in_affine):
    if math.prod(spatial) == 1:
        raise UsageError(
            "instance normalization of a single value per channel is always zero: "
            "use another --norm, or a larger image with a convolutional backbone"
        )
    return grouped(channels, channels, affine=in_affine == "channel")
