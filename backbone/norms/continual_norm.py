"""`cn`: Continual Normalization (Pham et al. 2022): group normalization without affine, then batch normalization."""

from torch import nn

from backbone.norms.batch_norm import BatchNorm
from backbone.norms.group_norm import GROUPS, build_group_norm
from utils.config.options import ByFidelity, Option, choice
from utils.config.registry import NORMS

AFFINE = Option(
    "cn_affine",
    choice("frozen", "learned"),
    "scale and shift of cn's batch normalization: frozen at 1 and 0, or learned",
    default=ByFidelity(official="frozen", paper="learned"),
)


@NORMS.register("cn", help="continual normalization: groups, then the batch", options=(GROUPS, AFFINE))
def continual_norm(channels: int, *, spatial: tuple[int, ...] | None, groups: int, cn_affine: str) -> nn.Sequential:
    return nn.Sequential(
        build_group_norm(groups, channels, spatial, affine=False),
        BatchNorm(channels, affine=cn_affine == "learned"),
    )
