"""From a configuration to the objects of a run, through the registries."""

from __future__ import annotations

import torch

from backbone.norms import NormFactory
from utils.config.arguments import Config
from utils.config.registry import BACKBONES, DATASETS, MODELS, NORMS, Entry
from utils.data.augment import Augment
from utils.data.buffer import Buffer
from utils.data.random import torch_seed
from utils.data.stream import Stream, StreamSpec
from utils.device import memory_format
from utils.errors import UsageError


def owned(entry: Entry, config: Config) -> dict:
    """The values of the options that an entry declared."""
    return {option.name: getattr(config, option.name) for option in entry.options}


class Data:
    """A configuration's data set: what it is, without reading an image, and its stream."""

    def __init__(self, config: Config):
        self.config, self.dataset = config, DATASETS.get(config.dataset).build()
        self.spec: StreamSpec = self.dataset.spec(config)
        check_together(config, self.spec)

    def stream(self, device: torch.device) -> Stream:
        stream = self.dataset.stream(self.config, self.spec)
        if MODELS.get(self.config.model).build.joint_training:
            stream = stream.merged()
        return stream.to(device)


def check_together(config: Config, spec: StreamSpec) -> None:
    """What can be checked only once the data set is known."""
    model = MODELS.get(config.model).build
    if spec.is_domain and model.needs_own_classes:
        raise UsageError(f"--model {config.model} needs tasks with classes of their own; {spec.name} shares them")
    if model.uses_buffer:
        if config.buffer_size is None:
            raise UsageError(f"--model {config.model} needs --buffer_size: {spec.name} has no size of its own for it")
        model.buffer_policy(config, spec)


def build_network(config: Config, spec: StreamSpec, device: torch.device, weights: str = "init") -> torch.nn.Module:
    """Built on the host under a seeded generator of its own, so that every device starts from the same weights.
    `weights` names the draw of them."""
    norm, backbone = NORMS.get(config.norm), BACKBONES.get(config.backbone)
    birthplace = device if device.type == "meta" else torch.device("cpu")
    with torch.random.fork_rng(devices=[]), birthplace:
        torch.manual_seed(torch_seed(config.seed, weights))
        factory = NormFactory(norm, owned(norm, config))
        try:
            net = backbone.build(spec.image_shape, spec.n_classes, factory, **owned(backbone, config))
        except RuntimeError as error:  # torch's word for too large
            raise UsageError(f"the network cannot be built: {str(error).splitlines()[0]}; make it smaller") from error
    if device.type != "meta":
        net.norms.check_device(device)
    return net.to(device, getattr(torch, config.dtype), memory_format=memory_format(config.channels_last))


def build_augment(config: Config, spec: StreamSpec, device: torch.device) -> Augment:
    layout = memory_format(config.channels_last)
    return Augment(spec, config.seed, device, getattr(torch, config.dtype), layout)


def build_method(config: Config, spec: StreamSpec, net: torch.nn.Module, device: torch.device):
    method, dtype = MODELS.get(config.model).build, getattr(torch, config.dtype)
    buffer = None
    if method.uses_buffer:
        policy = method.buffer_policy(config, spec)
        logits_dtype = dtype if method.stores_logits else None
        buffer = Buffer(config.buffer_size, policy, spec, device, logits_dtype=logits_dtype)
    return method(
        net, config, spec, build_augment(config, spec, device), buffer,
        lambda weights: build_network(config, spec, device, weights),
    )  # fmt: skip
