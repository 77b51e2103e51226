"""`--eval_statistics`: which means and variances the norm layers normalize with at test time.

    running  those that training has left
    buffer   estimated anew by one pass over the buffer, unaugmented, in batches of 256 of a drawn order: the plain
             average of the batches' means and of their biased variances. In the pass each layer normalizes with the
             batch's own; all else is in eval mode. While the buffer is empty, the running ones
    batch    those of the test batch, biased variances: 256 images of a task. Data sets lie sorted by class, and so
             would these batches be: the images of a task come in a drawn order, for which they are held at once

What training has left is put aside meanwhile and put back afterwards, so nothing else depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from backbone.network import Network
from backbone.norms.shared import BatchStatistics
from models.method import Method
from utils.data.random import generator
from utils.data.stream import chunks, concatenated, picked
from utils.device import send_together, to_device
from utils.errors import UsageError
from utils.step import Batch

EVALUATION_BATCH = 256


def norm_layers(net: Network) -> list[tuple[str, nn.Module]]:
    """Those that the network's factory built, in their order, with their names in the network."""
    found = [(name, module) for name, module in net.named_modules() if hasattr(module, "norm_number")]
    return sorted(found, key=lambda pair: pair[1].norm_number)


def statistical(net: Network, who_asks: str) -> list[nn.Module]:
    """The part of every norm layer that has batch and running statistics."""
    found = []
    for _, layer in norm_layers(net):
        parts = [part for part in layer.modules() if isinstance(part, _BatchNorm | BatchStatistics)]
        if len(parts) != 1:
            raise UsageError(f"{who_asks} needs a norm with batch and running statistics, as bn, cn and adab2n have")
        found += parts
    return found


def of_batch(activation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and biased variance of every channel."""
    activation = activation.to(torch.promote_types(activation.dtype, torch.float32))
    over = [0, *range(2, activation.ndim)]
    return activation.mean(over), activation.var(over, correction=0)


def chosen(method: Method) -> str:
    return getattr(method.config, "eval_statistics", "running")


@contextmanager
def at_test_time(method: Method) -> Iterator[None]:
    """Within, the network, in eval mode, normalizes with the statistics that the option names."""
    which = chosen(method)
    if which == "running" or (which == "buffer" and not len(method.buffer)):
        yield
        return
    parts = statistical(method.net, f"--eval_statistics {which}")
    before = [[buffer.clone() for buffer in part.buffers()] for part in parts]
    try:
        if which == "buffer":
            _estimate(method, parts)
            yield
        else:
            with _batch_by_batch(parts):
                yield
    finally:
        for part, kept in zip(parts, before, strict=True):
            for buffer, value in zip(part.buffers(), kept, strict=True):
                buffer.copy_(value)


def _take(part: nn.Module, mean: torch.Tensor, var: torch.Tensor) -> None:
    part.running_mean.copy_(mean)
    part.running_var.copy_(var)
    if isinstance(part, BatchStatistics):
        part.updates.fill_(1)  # a layer without updates would not believe its variance


@contextmanager
def _batch_by_batch(parts: list[nn.Module]) -> Iterator[list[list[tuple[torch.Tensor, torch.Tensor]]]]:
    """The layers normalize with each batch's own statistics; gives these, for every layer."""
    seen: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in parts]

    def look(number: int, part: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        found = of_batch(inputs[0])
        _take(part, *found)
        seen[number].append(found)

    hooks = [part.register_forward_pre_hook(partial(look, number)) for number, part in enumerate(parts)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def _estimate(method: Method, parts: list[nn.Module]) -> None:
    with _batch_by_batch(parts) as seen:
        for batch in buffered(method):
            method.net(method.augment.normalize(batch.images))
    for part, found in zip(parts, seen, strict=True):
        if found:  # not every layer need run
            _take(part, *(torch.stack(values).mean(0) for values in zip(*found, strict=True)))


def buffered(method: Method) -> Iterator[Batch]:
    """All samples of the buffer in a drawn order."""
    slots = method.buffer.choose(len(method.buffer), generator(method.config.seed, "eval_statistics"))
    for start in range(0, len(slots), EVALUATION_BATCH):
        some = slots[start : start + EVALUATION_BATCH]
        yield method.buffer.take(some, *send_together([some], method.buffer.labels.device))


def in_test_order(method: Method, batches: Iterator[Batch], *place: int) -> Iterator[Batch]:
    """A task's batches as they are, or, where they are to be normalized by themselves, of a drawn order."""
    if chosen(method) != "batch":
        return batches
    data = concatenated(list(batches))
    order = generator(method.config.seed, "test_order", *place).permutation(len(data))
    return chunks(picked(data, order, to_device(order, data.labels.device)), EVALUATION_BATCH)
