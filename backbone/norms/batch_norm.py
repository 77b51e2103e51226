"""`bn`: torch's own Batch Normalization (Ioffe & Szegedy 2015), momentum 0.1, unbiased running variance."""

import torch
from torch import nn

from backbone.norms.group_norm import EPS
from utils.config.registry import NORMS

MOMENTUM = 0.1


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """torch's batch norm, for vectors and maps."""

    running_mean: torch.Tensor
    running_var: torch.Tensor
    num_batches_tracked: torch.Tensor

    def __init__(self, channels: int):
        super().__init__(channels, eps=EPS, momentum=MOMENTUM)

    def _check_input_dim(self, input: torch.Tensor) -> None: ...


@NORMS.register("bn", help="batch normalization, torch's own")
def batch_norm(channels: int, *, spatial: tuple[int, ...] | None) -> BatchNorm:
    return BatchNorm(channels)
