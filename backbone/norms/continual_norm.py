"""`cn`: Continual Normalization (Pham et al. 2022): group normalization without affine, then batch normalization."""

from torch import Tensor

from backbone.adab2n import CN
from backbone.norms.group_norm import GROUPS, check_groups, reject_single_values
from utils.config.options import ByFidelity, Option, choice
from utils.config.registry import NORMS
from utils.errors import RunFailed

AFFINE = Option(
    "cn_affine",
    choice("frozen", "learned"),
    "scale and shift of cn's batch normalization: frozen at 1 and 0, or learned",
    default=ByFidelity(official="frozen", paper="learned"),
)


class ContinualNorm(CN):
    def normalize_groups(self, a: Tensor) -> Tensor:
        reject_single_values(a.numel() // (a.shape[0] * self.groups), RunFailed)
        return super().normalize_groups(a)


@NORMS.register("cn", help="continual normalization: groups, then the batch", options=(GROUPS, AFFINE))
def continual_norm(channels: int, *, spatial: tuple[int, ...] | None, groups: int, cn_affine: str) -> ContinualNorm:
    check_groups(groups, channels, spatial)
    return ContinualNorm(channels, groups, affine=cn_affine == "learned")
