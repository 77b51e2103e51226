"""`bn`: torch's own Batch Normalization (Ioffe & Szegedy 2015), momentum 0.1, unbiased running variance."""

import torch
from torch import nn

from backbone.norms.group_norm import EPS
from utils.config.registry import NORMS

MOMENTUM = 0.1


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """torch's, for vectors and maps alike, and not an `nn.BatchNorm2d`: networks of other libraries initialize those,
    and fail without affine."""

    def __init__(self, channels: int, *, affine: bool = True):
        super().__init__(channels, eps=EPS, momentum=MOMENTUM, affine=affine)

    def _check_input_dim(self, input: torch.Tensor) -> None: ...


@NORMS.register("bn", help="batch normalization, torch's own")
def batch_norm(channels, *, spatial):
    return BatchNorm(channels)
