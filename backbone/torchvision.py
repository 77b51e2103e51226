"""`torchvision`: any of torchvision's networks that takes `norm_layer`, with a head of our own: `--arch resnet34`.

Their stems are made for 224 pixels; smaller images keep what is left of them. Dropout and stochastic depth are off: all
randomness of a run is addressed, and theirs is not.
"""

from collections.abc import Callable

import torch
from torch import nn

from backbone.network import Network
from backbone.norms import NormFactory
from utils.config.options import Option
from utils.config.registry import BACKBONES, close_matches
from utils.errors import UsageError
from utils.packages import import_or_usage_error

ARCH = Option("arch", str, "Network of torchvision that takes norm_layer, such as mobilenet_v2.", default="resnet18")
FOREIGN_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@BACKBONES.register("torchvision", help="torchvision's network --arch, if it takes norm_layer", options=(ARCH,))
class Torchvision(Network):
    def __init__(self, image_shape: tuple[int, int, int], n_classes: int, factory: NormFactory, *, arch: str):
        super().__init__(factory)
        with torch.device("cpu"):  # some of them cannot be built on the device "meta", as a dry run would
            sizes = iter(map_sizes(arch, image_shape))
            self.trunk, width = build_trunk(arch, lambda channels: factory(channels, spatial=next(sizes)))
            self.classifier = nn.Linear(width, n_classes)

    def body(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        return self.trunk(x.expand(-1, 3, -1, -1)).flatten(1), ()  # grey images become colour images


def map_sizes(arch: str, image_shape: tuple[int, int, int]) -> list[tuple[int, ...]]:
    """Return the map size at every norm layer, in order of construction. Raises for a network that is not suitable."""
    sizes: list[tuple[int, ...]] = []

    def recorder(channels: int) -> nn.Module:
        """Return a layer that stands in for a norm and records the size of its input."""
        number, layer = len(sizes), nn.Identity()
        sizes.append(())

        def record(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            if inputs[0].dim() != 4 or inputs[0].shape[1] != channels:
                raise ValueError(f"it normalizes {tuple(inputs[0].shape)}, not maps of {channels} channels")
            sizes[number] = tuple(inputs[0].shape[2:])

        layer.register_forward_pre_hook(record)
        return layer

    net, _ = build_trunk(arch, recorder)
    if foreign := [type(layer).__name__ for layer in net.modules() if isinstance(layer, FOREIGN_NORMS)]:
        raise unsuitable(arch, f"it has {foreign[0]} layers besides")
    try:
        with torch.no_grad():
            net.eval()(torch.zeros(1, *image_shape).expand(-1, 3, -1, -1))
    except (ValueError, RuntimeError, AssertionError) as error:
        size = "x".join(map(str, image_shape))
        raise unsuitable(arch, f"with images of {size}: {' '.join(str(error).split())[:200]}") from error
    return sizes


def build_trunk(arch: str, norm_layer: Callable[[int], nn.Module]) -> tuple[nn.Module, int]:
    """Return the network without its head, and the width of the embedding."""
    torchvision = import_or_usage_error("torchvision", "--backbone torchvision")
    models = torchvision.models
    if arch not in (known := models.list_models(module=models)):
        close = close_matches(arch, known)
        raise UsageError(f"--arch {arch}: torchvision has no such network{close} Try a ResNet, MobileNet or RegNet")
    try:
        net = models.get_model(arch, weights=None, norm_layer=norm_layer)
    except TypeError as error:
        raise unsuitable(arch, "it cannot be given a norm_layer") from error
    head = "fc" if hasattr(net, "fc") else "classifier"
    linear = [layer for layer in getattr(net, head, nn.Identity()).modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise unsuitable(arch, "it has no linear classifier")
    setattr(net, head, nn.Identity())
    for layer in net.modules():
        if isinstance(layer, nn.Dropout | torchvision.ops.StochasticDepth):
            layer.p = 0.0
    return net, linear[0].in_features


def unsuitable(arch: str, why: str) -> UsageError:
    return UsageError(f"--arch {arch} is not suitable: {why}; use resnet34, mobilenet_v2 or regnet_y_400mf, say")
