"""`none`: no normalization, nothing but the scale and shift that the others end with."""

import torch
from torch import nn

from utils.config.registry import NORMS


class ScaleAndShift(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        in_space = (-1, *(1 for _ in a.shape[2:]))
        return torch.addcmul(self.bias.view(in_space), a, self.weight.view(in_space)).to(a.dtype)


@NORMS.register("none", help="no normalization: scale and shift only")
def scale_and_shift(channels: int, *, spatial: tuple[int, ...] | None) -> ScaleAndShift:
    return ScaleAndShift(channels)
