"""`ln`: Layer Normalization (Ba et al. 2016), group normalization with one group."""

from torch import nn

from backbone.norms import fidelity_option
from backbone.norms.group_norm import EPS, GroupNorm
from utils.config.registry import NORMS
from utils.errors import UsageError

TEXT = "Scale and shift of ln: one per element of the map, or one per channel."
AFFINE = fidelity_option("ln_affine", "element", "channel", TEXT)


@NORMS.register("ln", help="layer normalization", options=(AFFINE,))
def layer_norm(channels: int, *, spatial: tuple[int, ...] | None, ln_affine: str) -> GroupNorm | nn.LayerNorm:
    if ln_affine == "channel":
        return GroupNorm(1, channels, spatial)
    if spatial is None:
        raise UsageError("--ln_affine element needs map sizes, which this backbone does not give; use channel")
    return nn.LayerNorm((channels, *spatial), eps=EPS)
