"""`--eval_statistics`: the means and variances that norm layers use at test time.

    running  the running statistics of training
    buffer   estimated in one pass over the buffer, unaugmented, in batches of 256 in random order, as `statistics_of`
             says; while the buffer is empty, the running statistics
    batch    those of the test batch, with biased variances: 256 images of a task in random order, since data sets are
             sorted by class

The running statistics are restored after every evaluation, so training is unaffected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from backbone.adab2n.statistics import balanced_weights, estimate_statistics
from backbone.network import Network
from backbone.norms.family import FamilyBatchNorm
from models.method import Method
from utils.data.random import generator
from utils.data.stream import chunks, concatenated, index_batch
from utils.errors import UsageError
from utils.step import Batch

EVALUATION_BATCH = 256  # images of a pass whose batches are normalized by themselves
CPU_BATCH_BYTES = 2**20  # of the inputs of one forward pass in an evaluation on a CPU
SMALLEST_CPU_BATCH = 16

StatLayer = _BatchNorm | FamilyBatchNorm


def evaluation_batch_size(method: Method) -> int:
    """Return the number of images per forward pass of an evaluation, which the outputs do not depend on.

    Small batches are up to twice as fast on a CPU: glibc returns large activations to the system after every batch.
    """
    if statistics_option(method) == "batch" or next(method.net.parameters()).device.type != "cpu":
        return EVALUATION_BATCH
    image_bytes = math.prod(method.spec.input_shape) * torch.finfo(getattr(torch, method.config.dtype)).bits // 8
    fitting = 2 ** int(math.log2(max(CPU_BATCH_BYTES // image_bytes, 1)))
    return min(max(fitting, SMALLEST_CPU_BATCH), EVALUATION_BATCH)


def norm_layers(net: Network) -> list[tuple[str, nn.Module]]:
    """Return the norm layers with their names in the network, in order of construction."""
    layers = [(name, module) for name, module in net.named_modules() if hasattr(module, "norm_number")]
    return sorted(layers, key=lambda pair: cast("int", pair[1].norm_number))


def stat_parts(layer: nn.Module) -> list[StatLayer]:
    return [part for part in layer.modules() if isinstance(part, StatLayer)]


def has_statistics(net: Network) -> bool:
    """Return whether every norm layer has batch and running statistics."""
    return all(len(stat_parts(layer)) == 1 for _, layer in norm_layers(net))


def batch_stat_layers(net: Network, feature: str) -> list[StatLayer]:
    """Return the part of every norm layer that has batch and running statistics; `feature` names who needs it."""
    if not has_statistics(net):
        raise UsageError(f"{feature} needs a norm with batch and running statistics, such as bn, cn or adab2n")
    return [part for _, layer in norm_layers(net) for part in stat_parts(layer)]


def statistics_option(method: Method) -> str:
    return getattr(method.config, "eval_statistics", "running")


@contextmanager
def eval_statistics_applied(method: Method, which: str | None = None) -> Iterator[None]:
    """Let the network, in eval mode, normalize with the statistics that `which` or the option names."""
    which = which or statistics_option(method)
    if which == "running" or (which == "buffer" and not len(method.buffer or ())):
        yield
    elif which == "buffer":
        with statistics_of(method, buffer_batches(method)):
            yield
    else:
        layers = batch_stat_layers(method.net, f"--eval_statistics {which}")
        with _buffers_restored(layers), estimate_statistics(layers):
            yield


@contextmanager
def statistics_of(method: Method, batches: Iterable[Batch], *, balanced: bool = False) -> Iterator[None]:
    """Evaluate the network with statistics estimated in one pass over `batches`.

    In the pass each layer normalizes with the statistics of the batch. The estimates are the plain averages of the
    batches' means and biased variances. With `balanced`, all tasks in a batch have the same weight in its statistics.
    """
    layers = batch_stat_layers(method.net, "this evaluation")
    with _buffers_restored(layers):
        with estimate_statistics(layers) as estimates, torch.no_grad():
            for batch in batches:
                estimates.weights = balanced_weights(batch.tasks) if balanced else None
                method.net(method.augment.normalize(batch.images))
        estimates.apply()
        yield


@contextmanager
def _buffers_restored(layers: list[StatLayer]) -> Iterator[None]:
    buffers = [buffer for layer in layers for buffer in layer.buffers()]
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)


def buffer_batches(method: Method) -> Iterator[Batch]:
    """Yield all samples of the buffer in random order."""
    buffer = method.buffer
    assert buffer is not None
    slots = generator(method.config.seed, "eval_statistics").choice(buffer.filled, len(buffer), replace=False)
    for some in np.split(slots, range(EVALUATION_BATCH, len(slots), EVALUATION_BATCH)):
        yield buffer.gather(some)


def in_test_order(method: Method, batches: Iterator[Batch], *place: int) -> Iterator[Batch]:
    """Return a task's batches, in random order if they are normalized with their own statistics."""
    if statistics_option(method) != "batch":
        return batches
    return shuffled_batches(concatenated(list(batches)), generator(method.config.seed, "test_order", *place))


def shuffled_batches(data: Batch, dice: np.random.Generator) -> Iterator[Batch]:
    order = dice.permutation(len(data))
    return chunks(index_batch(data, order), EVALUATION_BATCH)
