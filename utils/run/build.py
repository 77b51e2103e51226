"""From a configuration to the objects of a run, through the registries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import torch

from backbone.norms import NormFactory
from utils.config.registry import BACKBONES, DATASETS, MODELS, NORMS
from utils.data.augment import Augment
from utils.data.buffer import Buffer
from utils.data.random import global_generators_restored, seed_global_generators, torch_seed
from utils.data.stream import Stream, StreamSpec
from utils.errors import UsageError
from utils.run.eval_statistics import batch_stat_layers

if TYPE_CHECKING:
    from backbone.network import Network
    from models.method import Method
    from utils.config.resolve import Config

ABSENT = "absent"  # the fingerprint of data that are missing


def method_class(config: Config) -> type[Method]:
    return cast("type[Method]", MODELS.get(config.model).build)


class StreamBuilder:
    """A configuration's data set: its facts, without reading an image, and its stream."""

    def __init__(self, config: Config, fingerprint: str | None = None):
        """With a given fingerprint, the data need not be there yet."""
        self.config, self.dataset = config.seen_by("dataset"), DATASETS.get(config.dataset).build()
        self.dataset.given_fingerprint = fingerprint
        seed_global_generators(0, "data")  # data do not depend on the run
        self.whole: StreamSpec = self.dataset.spec(self.config)
        self.n_tasks = config.stop_after or self.whole.n_tasks
        if self.n_tasks > self.whole.n_tasks:
            raise UsageError(f"--stop_after {self.n_tasks}: {self.whole.name} has {self.whole.n_tasks} tasks")
        self.is_cut = self.n_tasks < self.whole.n_tasks
        self.spec = self.whole.first_tasks(self.n_tasks) if self.is_cut else self.whole
        if config.boundary != "sharp":
            if self.whole.is_domain:
                advice = "remove --boundary, or use a data set such as seq-digits"
                raise UsageError(f"--boundary: tasks of {self.whole.name} share their classes; {advice}")
            self.spec = self.whole.without_boundaries(config.boundary)
        check_together(config, self.spec)

    def stream(self, device: torch.device) -> Stream:
        seed_global_generators(0, "data")
        with oom_as_usage_error("the data"):
            stream = self.dataset.stream(self.config, self.whole)
            if self.is_cut:
                stream = stream.first_tasks(self.n_tasks)
            if not self.spec.has_boundaries:
                stream = stream.without_boundaries(self.config.boundary, self.config.boundary_strength)
            if method_class(self.config).joint_training:
                stream = stream.as_single_task()
            return stream.to(device)


def check_together(config: Config, spec: StreamSpec) -> None:
    """Check options that depend on facts of the data set."""
    if not spec.fingerprint:
        raise UsageError(f"{spec.name} has no fingerprint to tell runs on other data apart; give its StreamSpec one")
    method, config = method_class(config), config.seen_by("model")
    if spec.is_domain and method.needs_own_classes:
        raise UsageError(f"--model {config.model}: tasks of {spec.name} share their classes; use another model")
    if spec.is_domain and getattr(config, "classifier", "all") == "seen":
        raise UsageError(f"--classifier seen has no effect on {spec.name}, whose tasks share their classes; remove it")
    if method.uses_buffer:
        if config.buffer_size is None:
            raise UsageError(f"--model {config.model} needs --buffer_size; {spec.name} has no default for it")
        method.buffer_policy(config, spec)
    if config.drop_last and (size := min(epoch_sizes(config, spec))) < config.batch_size:
        raise UsageError(f"--drop_last leaves nothing of a task of {size} images; set --batch_size below {size + 1}")


def build_network(config: Config, spec: StreamSpec, device: torch.device, weights: str = "init") -> Network:
    """Return a network with the same weights on every device (none on meta); `weights` names the random draw."""
    norm, backbone = NORMS.get(config.norm), BACKBONES.get(config.backbone)
    is_meta = device.type == "meta"
    with global_generators_restored(), device if is_meta else torch.device("cpu"):
        seed_global_generators(config.seed, weights)
        torch.manual_seed(torch_seed(config.seed, weights))
        factory = NormFactory(norm, config.options_of("norm"))
        try:
            net = backbone.build(spec.input_shape, spec.n_classes, factory, **config.options_of("backbone"))
        except RuntimeError as error:  # torch raises it for sizes that are too large
            raise UsageError(f"the network cannot be built: {str(error).splitlines()[0]}; make it smaller") from error
    if getattr(config, "eval_statistics", "running") != "running":
        batch_stat_layers(net, f"--eval_statistics {config.eval_statistics}")
    if config.amp != "none":
        net.autocast_dtype = getattr(torch, config.amp)
    if getattr(config, "classifier", "all") == "seen":
        net.unseen = torch.zeros(spec.n_classes, dtype=torch.bool)
    if not is_meta:
        net.norms.check_device(device)
    with oom_as_usage_error("the network"):
        return net.to(device, getattr(torch, config.dtype))


def build_augment(config: Config, spec: StreamSpec, device: torch.device) -> Augment:
    return Augment(spec, config.seed, device, getattr(torch, config.dtype))


def build_method(config: Config, spec: StreamSpec, net: Network, device: torch.device) -> Method:
    method_type, dtype, own_config = method_class(config), getattr(torch, config.dtype), config.seen_by("model")
    with oom_as_usage_error(f"--model {config.model}"):
        buffer = None
        if method_type.uses_buffer:
            policy = method_type.buffer_policy(own_config, spec)
            logits_dtype = dtype if method_type.stores_logits else None
            buffer = Buffer(config.buffer_size, policy, spec, device, logits_dtype=logits_dtype)
        new_network = partial(build_network, config, spec, device)
        seed_global_generators(config.seed, "method")
        method = method_type(net, own_config, spec, build_augment(config, spec, device), buffer, new_network)
    if config.compile:
        from models.compiled_step import CompiledStep

        method.compiled = CompiledStep(method)
    return method


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "alloc" in str(error))


@contextmanager
def oom_as_usage_error(what: str) -> Iterator[None]:
    """Turn out-of-memory errors into a UsageError."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise UsageError(f"{what} does not fit into memory ({str(error)[:200]}); make it smaller") from error


def epoch_sizes(config: Config, spec: StreamSpec) -> Sequence[int]:
    """Return the samples in an epoch of every task that is trained."""
    method = method_class(config)
    sizes = [sum(spec.train_sizes)] if method.joint_training else spec.train_sizes
    return method.epoch_sizes(config.seen_by("model"), spec, sizes)
