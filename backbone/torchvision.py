"""`torchvision`: any of torchvision's networks that takes `norm_layer`, with a head of our own: `--arch resnet34`.

Their stems are made for 224 pixels; smaller images keep what is left of them. Dropout and stochastic depth are off: all
randomness of a run is addressed, and theirs is not.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from backbone.network import Network
from backbone.norms import NormFactory
from utils.config.options import Option
from utils.config.registry import BACKBONES, close_matches
from utils.errors import UsageError
from utils.packages import import_or_usage_error

ARCH = Option("arch", str, "network of torchvision that takes norm_layer, such as mobilenet_v2", default="resnet18")
HEADS = ("fc", "classifier")
FOREIGN_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@BACKBONES.register("torchvision", help="torchvision's network --arch, if it takes norm_layer", options=(ARCH,))
class Torchvision(Network):
    def __init__(self, image_shape: tuple[int, int, int], n_classes: int, factory: NormFactory, *, arch: str):
        super().__init__(factory)
        with torch.device("cpu"):  # some of them cannot be built without memory, as a dry run would
            seen = maps_of_norms(arch, image_shape)
            sizes = iter(seen)
            self.trunk, width = trunk(arch, lambda channels: factory(channels, spatial=next(sizes)))
            self.classifier = nn.Linear(width, n_classes)

    def body(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        return self.trunk(in_colour(x)).flatten(1), ()


def in_colour(x: torch.Tensor) -> torch.Tensor:
    return x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x


class SizeNote(nn.Module):
    """Stands where a norm layer will, and notes the map that it sees."""

    def __init__(self, channels: int):
        super().__init__()
        self.channels = channels
        self.size: tuple[int, ...] = ()

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        if a.dim() != 4 or a.shape[1] != self.channels:
            raise ValueError(f"it normalizes {tuple(a.shape)}, not maps of {self.channels} channels")
        self.size = tuple(a.shape[2:])
        return a


def maps_of_norms(arch: str, image_shape: tuple[int, int, int]) -> list[tuple[int, ...]]:
    """The size of the map at every norm layer, in order of construction; refuses a network that is not suitable."""
    notes: list[SizeNote] = []

    def note(channels: int) -> SizeNote:
        notes.append(SizeNote(channels))
        return notes[-1]

    net, width = trunk(arch, note)
    if foreign := [type(layer).__name__ for layer in net.modules() if isinstance(layer, FOREIGN_NORMS)]:
        raise unsuitable(arch, f"it has {foreign[0]} layers besides")
    try:
        with torch.no_grad():
            embedding = net.eval()(in_colour(torch.zeros(1, *image_shape))).flatten(1)
    except (ValueError, RuntimeError, AssertionError) as error:
        size = "x".join(map(str, image_shape))
        raise unsuitable(arch, f"with images of {size}: {' '.join(str(error).split())[:200]}") from error
    if embedding.shape[1] != width:
        raise unsuitable(arch, f"its head expects {width} values and would get {embedding.shape[1]}")
    return [one.size for one in notes]


def trunk(arch: str, norm_layer: Callable[[int], nn.Module]) -> tuple[nn.Module, int]:
    """The network without its head, and the width of the embedding."""
    torchvision = import_or_usage_error("torchvision", "--backbone torchvision")
    models = torchvision.models
    if arch not in (known := models.list_models(module=models)):
        raise UsageError(
            f"--arch {arch}: torchvision has no such network{close_matches(arch, known)} "
            "Suitable are its ResNets, MobileNets and RegNets, among others"
        )
    try:
        net = models.get_model(arch, weights=None, norm_layer=norm_layer)
    except TypeError as error:
        raise unsuitable(arch, "it cannot be given a norm_layer") from error
    head = next((name for name in HEADS if hasattr(net, name)), None)
    linear = [layer for layer in getattr(net, head).modules() if isinstance(layer, nn.Linear)] if head else []
    if head is None or not linear:
        raise unsuitable(arch, "it has no linear classifier")
    setattr(net, head, nn.Identity())
    for layer in net.modules():
        if isinstance(layer, nn.Dropout | torchvision.ops.StochasticDepth):
            layer.p = 0.0
    return net, linear[0].in_features


def unsuitable(arch: str, why: str) -> UsageError:
    return UsageError(f"--arch {arch} is not suitable: {why}; use resnet34, mobilenet_v2 or regnet_y_400mf, say")
