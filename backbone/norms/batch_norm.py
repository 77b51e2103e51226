"""`bn`: torch's own Batch Normalization (Ioffe & Szegedy 2015), momentum 0.1, unbiased running variance."""

from torch import nn

from backbone.norms.group_norm import EPS
from utils.config.registry import NORMS

MOMENTUM = 0.1


def batch_norm_layer(channels: int, spatial: tuple[int, ...], *, affine: bool = True) -> nn.Module:
    layer = nn.BatchNorm2d if spatial else nn.BatchNorm1d
    return layer(channels, eps=EPS, momentum=MOMENTUM, affine=affine)


@NORMS.register("bn", help="batch normalization, torch's own")
def batch_norm(channels, *, spatial, shared):
    return batch_norm_layer(channels, spatial)
