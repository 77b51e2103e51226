"""From a configuration to the objects of a run, through the registries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from backbone.norms import NormFactory
from utils.config.registry import BACKBONES, DATASETS, MODELS, NORMS, Entry
from utils.data.augment import Augment
from utils.data.buffer import Buffer
from utils.data.random import torch_seed
from utils.data.stream import Stream, StreamSpec
from utils.device import memory_format, memory_of, refuse_corrupting_convolutions, refuse_without_half
from utils.errors import UsageError
from utils.run.statistics import statistical

if TYPE_CHECKING:
    from utils.config.arguments import Config

ABSENT = "absent"  # the fingerprint of data that are not there


def owned(entry: Entry, config: Config) -> dict:
    """The values of the options that an entry declared."""
    return {option.name: getattr(config, option.name) for option in entry.options}


class Data:
    """A configuration's data set: what it is, without reading an image, and its stream."""

    def __init__(self, config: Config, fingerprint: str | None = None):
        """With a given fingerprint nothing needs to be there yet."""
        self.config, self.dataset = config, DATASETS.get(config.dataset).build()
        self.dataset.known_fingerprint = fingerprint
        self.whole: StreamSpec = self.dataset.spec(config)
        self.tasks = tasks_of(config, self.whole)
        self.spec = self.whole if self.tasks is None else self.whole.part(*self.tasks)
        check_together(config, self.spec)

    def stream(self, device: torch.device) -> Stream:
        with told_if_too_large("the data"):
            stream = self.dataset.stream(self.config, self.whole)
            if self.tasks is not None:
                stream = stream.part(*self.tasks)
            if MODELS.get(self.config.model).build.joint_training:
                stream = stream.merged()
            return stream.to(device)


def tasks_of(config: Config, spec: StreamSpec) -> tuple[int, int] | None:
    """The first task that is trained and the one after the last; None for all of them."""
    first, stop = config.start_from, config.stop_after or spec.n_tasks
    if stop > spec.n_tasks:
        raise UsageError(f"--stop_after {stop}: {spec.name} has {spec.n_tasks} tasks")
    if first >= stop:
        raise UsageError(f"--start_from {first} leaves no task of {stop}: they are counted from 0")
    return None if (first, stop) == (0, spec.n_tasks) else (first, stop)


def check_together(config: Config, spec: StreamSpec) -> None:
    """What can be checked only once the data set is known."""
    if not spec.fingerprint:
        raise UsageError(
            f"{spec.name} has no fingerprint that would tell runs on other data apart: give its StreamSpec one"
        )
    model = MODELS.get(config.model).build
    if spec.is_domain and model.needs_own_classes:
        raise UsageError(f"--model {config.model} needs tasks with classes of their own; {spec.name} shares them")
    if model.uses_buffer:
        if config.buffer_size is None:
            raise UsageError(f"--model {config.model} needs --buffer_size: {spec.name} has no size of its own for it")
        model.buffer_policy(config, spec)
    if config.drop_last and (size := min(epoch_sizes(config, spec))) < config.batch_size:
        raise UsageError(f"--drop_last leaves nothing of a task of {size} images: set --batch_size below {size + 1}")


def build_network(config: Config, spec: StreamSpec, device: torch.device, weights: str = "init") -> torch.nn.Module:
    """Built on the host under a seeded generator of its own, so that every device starts from the same weights.
    `weights` names the draw of them."""
    norm, backbone = NORMS.get(config.norm), BACKBONES.get(config.backbone)
    on_paper = device.type == "meta"
    with torch.random.fork_rng(devices=[]), device if on_paper else torch.device("cpu"):
        torch.manual_seed(torch_seed(config.seed, weights))
        factory = NormFactory(norm, owned(norm, config))
        try:
            net = backbone.build(spec.input_shape, spec.n_classes, factory, **owned(backbone, config))
        except RuntimeError as error:  # torch's word for too large
            raise UsageError(f"the network cannot be built: {str(error).splitlines()[0]}; make it smaller") from error
    if getattr(config, "eval_statistics", "running") != "running":
        statistical(net, f"--eval_statistics {config.eval_statistics}")
    if config.amp != "none":
        refuse_without_half(device)
        net.half = getattr(torch, config.amp)
    if not on_paper:
        net.norms.check_device(device)
    layout = memory_format(config.channels_last)
    with told_if_too_large("the network"):
        net = net.to(device, getattr(torch, config.dtype), memory_format=layout)
    if layout is torch.channels_last:
        refuse_corrupting_convolutions(net, device)
    return net


def build_augment(config: Config, spec: StreamSpec, device: torch.device) -> Augment:
    layout = memory_format(config.channels_last)
    return Augment(spec, config.seed, device, getattr(torch, config.dtype), layout)


def build_method(config: Config, spec: StreamSpec, net: torch.nn.Module, device: torch.device):
    method, dtype = MODELS.get(config.model).build, getattr(torch, config.dtype)
    refuse_too_large_buffer(config, spec, device)
    with told_if_too_large(f"--model {config.model}"):
        buffer = None
        if method.uses_buffer:
            policy = method.buffer_policy(config, spec)
            logits_dtype = dtype if method.stores_logits else None
            buffer = Buffer(config.buffer_size, policy, spec, device, logits_dtype=logits_dtype)
        built = method(
            net, config, spec, build_augment(config, spec, device), buffer,
            lambda weights: build_network(config, spec, device, weights),
        )  # fmt: skip
    if config.compile:
        from models.compiled_step import CompiledStep

        built.compiled = CompiledStep(built)
    return built


# --- memory -----------------------------------------------------------------------------------------------------------


@contextmanager
def told_if_too_large(what: str) -> Iterator[None]:
    """In one line, where an allocation is refused."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "alloc" not in str(error):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(f"{what} does not fit into memory: {reason}; make it smaller") from error


def refuse_too_large_buffer(config: Config, spec: StreamSpec, device: torch.device) -> None:
    """Before it is allocated: a system that promises more memory than it has kills whoever uses it."""
    needed, there = buffer_bytes(config, spec), memory_of(device)
    if needed > there:
        raise UsageError(
            f"--buffer_size {config.buffer_size} needs {needed / 1e9:.2f} GB of memory, and this device has "
            f"{there / 1e9:.2f}: make it smaller"
        )


def buffer_bytes(config: Config, spec: StreamSpec) -> int:
    method = MODELS.get(config.model).build
    logits_dtype = getattr(torch, config.dtype) if method.stores_logits else None
    return config.buffer_size * Buffer.bytes_of_one(spec, logits_dtype) if method.uses_buffer else 0


def epoch_sizes(config: Config, spec: StreamSpec) -> Sequence[int]:
    """Samples in an epoch of every task that is trained."""
    model = MODELS.get(config.model).build
    return model.epoch_sizes(config, spec, [sum(spec.train_sizes)] if model.joint_training else spec.train_sizes)
