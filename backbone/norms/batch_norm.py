"""`bn`: torch's own Batch Normalization (Ioffe & Szegedy 2015), momentum 0.1, unbiased running variance."""

from backbone.adab2n.any_batch_norm import AnyBatchNorm
from backbone.norms.group_norm import EPS
from utils.config.registry import NORMS

MOMENTUM = 0.1


class BatchNorm(AnyBatchNorm):
    """torch's batch norm, for vectors and maps."""

    def __init__(self, channels: int):
        super().__init__(channels, eps=EPS, momentum=MOMENTUM)


@NORMS.register("bn", help="batch normalization, torch's own")
def batch_norm(channels: int, *, spatial: tuple[int, ...] | None) -> BatchNorm:
    return BatchNorm(channels)
