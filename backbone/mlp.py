"""`mlp`: two hidden linear layers with a norm after each, 128 wide so that 32 groups divide it.

The paper's Permuted MNIST network is not stated; it needs normalization layers, and this is the smallest that has.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from backbone.network import Network
from backbone.norms import NormFactory
from utils.config.options import Option, integer
from utils.config.registry import BACKBONES

OPTIONS = (Option("hidden", integer(1, 2**16), "Width of the two hidden layers of the mlp.", default=128),)


@BACKBONES.register("mlp", help="two hidden layers with a norm after each", options=OPTIONS)
class MLP(Network):
    def __init__(self, image_shape: tuple[int, int, int], n_classes: int, factory: NormFactory, *, hidden: int):
        super().__init__(factory)
        self.linear1 = nn.Linear(math.prod(image_shape), hidden)
        self.norm1 = factory(hidden, spatial=())
        self.linear2 = nn.Linear(hidden, hidden)
        self.norm2 = factory(hidden, spatial=())
        self.classifier = nn.Linear(hidden, n_classes)

    def body(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        out = F.relu(self.norm1(self.linear1(x.flatten(1))))
        return F.relu(self.norm2(self.linear2(out))), ()
