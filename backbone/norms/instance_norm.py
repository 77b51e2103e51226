"""`in`: Instance Normalization (Ulyanov et al. 2016), group normalization with one group per channel."""

from backbone.norms import fidelity_option
from backbone.norms.group_norm import GroupNorm
from utils.config.registry import NORMS

AFFINE = fidelity_option("in_affine", "none", "channel", "Scale and shift of in: none, or one per channel.")


@NORMS.register("in", help="instance normalization", options=(AFFINE,))
def instance_norm(channels: int, *, spatial: tuple[int, ...] | None, in_affine: str) -> GroupNorm:
    return GroupNorm(channels, channels, spatial, affine=in_affine == "channel")
