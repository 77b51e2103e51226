"""`cn`: Continual Normalization (Pham et al. 2022): group normalization without affine, then batch normalization."""

from backbone.adab2n import CN
from backbone.norms import fidelity_option
from backbone.norms.group_norm import GROUPS, check_groups
from utils.config.registry import NORMS

TEXT = "Scale and shift of cn's batch normalization: frozen at 1 and 0, or learned."
AFFINE = fidelity_option("cn_affine", "frozen", "learned", TEXT)


@NORMS.register("cn", help="continual normalization: groups, then the batch", options=(GROUPS, AFFINE))
def continual_norm(channels: int, *, spatial: tuple[int, ...] | None, groups: int, cn_affine: str) -> CN:
    check_groups(groups, channels, spatial)
    return CN(channels, groups, affine=cn_affine == "learned")
