"""`resnet18`: the network of the paper's experiments, with 20 norm layers.

For images up to 84 pixels the stem is one 3x3 convolution without pooling; from 128 pixels on it is the usual
7x7 convolution of stride 2 and a max-pool.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from backbone.network import Network
from backbone.norms import NormFactory
from utils.config.options import Option, integer
from utils.config.registry import BACKBONES

WIDTH = Option("num_filters", integer(1, 4096), "Channels of the first stage (the paper's network has 64).", default=64)


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


def divided(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """Return the size after a padded convolution or pooling of that stride."""
    return math.ceil(size[0] / stride), math.ceil(size[1] / stride)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut. Returns the sum before its ReLU: LiDER's features are taken there."""

    def __init__(self, inputs: int, outputs: int, stride: int, size: tuple[int, int], norm: NormFactory):
        super().__init__()
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.norm1 = norm(outputs, spatial=size)
        self.conv2 = conv3x3(outputs, outputs)
        self.norm2 = norm(outputs, spatial=size)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False))
            self.shortcut.append(norm(outputs, spatial=size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        return self.norm2(self.conv2(out)) + self.shortcut(x)


@BACKBONES.register("resnet18", help="ResNet-18, 3x3 stem below 128 pixels", options=(WIDTH,), hashed={"stem": "auto"})
class ResNet18(Network):
    n_feature_maps = 5

    def __init__(self, image_shape: tuple[int, int, int], n_classes: int, factory: NormFactory, *, num_filters: int):
        super().__init__(factory)
        channels, size = image_shape[0], image_shape[1:]
        large = min(size) >= 128
        kernel, stride = (7, 2) if large else (3, 1)
        self.conv1 = nn.Conv2d(channels, num_filters, kernel, stride=stride, padding=kernel // 2, bias=False)
        size = divided(size, stride)
        self.norm1 = factory(num_filters, spatial=size)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity()
        size = divided(size, stride)
        self.stages = nn.ModuleList()
        inputs = num_filters
        for stage in range(4):
            outputs, stride = num_filters * 2**stage, 1 if stage == 0 else 2
            size = divided(size, stride)
            first = BasicBlock(inputs, outputs, stride, size, factory)
            self.stages.append(nn.ModuleList([first, BasicBlock(outputs, outputs, 1, size, factory)]))
            inputs = outputs
        self.classifier = nn.Linear(inputs, n_classes)

    def body(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        stem = self.norm1(self.conv1(x))
        features = [stem]
        out = self.pool(F.relu(stem))
        for stage in self.stages:
            first, second = stage.children()
            out = second(F.relu(first(out)))
            features.append(out)
            out = F.relu(out)
        return out.mean((2, 3)), tuple(features)
