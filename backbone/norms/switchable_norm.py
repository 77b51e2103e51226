"""`sn`: Switchable Normalization (Luo et al. 2019): mean and variance are learned mixtures of three norms' own.

Those of IN (over space), LN (over space and channels) and BN (over space and samples) are weighted by a softmax, means
and variances each by their own. Testing takes BN's running statistics for BN's part; the others are the sample's.
"""

import torch
from torch import nn

from backbone.adab2n.weighted import compute_dtype
from backbone.norms.batch_norm import MOMENTUM
from backbone.norms.group_norm import EPS, check_groups
from utils.config.registry import NORMS
from utils.step import total


class SwitchableNorm(nn.Module):
    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.mean_weights = nn.Parameter(torch.zeros(3))  # of IN, LN and BN, before the softmax
        self.var_weights = nn.Parameter(torch.zeros(3))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        x, space = a.to(compute_dtype(a)), tuple(range(2, a.dim()))
        instance = torch.var_mean(x, space, correction=0)  # variances and means, (N, C)
        layer = pooled(*instance, over=1)  # (N, 1)
        if self.training:
            batch = pooled(*instance, over=0)  # (1, C)
            var, mean = (statistic.detach().squeeze(0) for statistic in batch)
            count = a.numel() // a.shape[1]
            self.running_mean.lerp_(mean, MOMENTUM)
            self.running_var.lerp_(var * (count / (count - 1)), MOMENTUM)  # unbiased, as that of `bn`
        else:
            batch = self.running_var, self.running_mean
        variances, means = zip(instance, layer, batch, strict=True)
        scale = self.weight * (mixed(self.var_weights, variances) + EPS).rsqrt()
        shift = self.bias - mixed(self.mean_weights, means) * scale
        in_space = (*scale.shape, *(1 for _ in space))
        return torch.addcmul(shift.view(in_space), x, scale.view(in_space)).to(a.dtype)


def pooled(var: torch.Tensor, mean: torch.Tensor, *, over: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return variance and mean of equally large parts together, from their own."""
    between, whole = torch.var_mean(mean, over, correction=0, keepdim=True)
    return var.mean(over, keepdim=True) + between, whole


def mixed(weights: torch.Tensor, statistics: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return total(weight * statistic for weight, statistic in zip(weights.softmax(0), statistics, strict=True))


@NORMS.register("sn", help="switchable normalization: a learned mixture of in, ln and bn")
def switchable_norm(channels: int, *, spatial: tuple[int, ...] | None) -> SwitchableNorm:
    check_groups(channels, channels, spatial)
    return SwitchableNorm(channels)
