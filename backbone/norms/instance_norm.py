"""`in`: Instance Normalization (Ulyanov et al. 2016), group normalization with one group per channel."""

from backbone.norms.group_norm import GroupNorm, build_group_norm
from utils.config.options import ByFidelity, Option, choice
from utils.config.registry import NORMS

AFFINE = Option(
    "in_affine",
    choice("none", "channel"),
    "scale and shift of in: none, or one per channel",
    default=ByFidelity(official="none", paper="channel"),
)


@NORMS.register("in", help="instance normalization", options=(AFFINE,))
def instance_norm(channels: int, *, spatial: tuple[int, ...] | None, in_affine: str) -> GroupNorm:
    return build_group_norm(channels, channels, spatial, affine=in_affine == "channel")
