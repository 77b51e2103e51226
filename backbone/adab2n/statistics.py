"""Means and variances of batches, in place of the running statistics of a network in eval mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from .continual_norm import CN

Statistics = tuple[Tensor, Tensor]  # (C,) mean and variance


def batch_mean_var(activation: Tensor, weights: Tensor | None = None) -> Statistics:
    """Return the mean and the biased variance of every channel, where samples count by `weights`, which sum to 1."""
    activation = activation.to(torch.promote_types(activation.dtype, torch.float32))
    over = [0, *range(2, activation.ndim)]
    if weights is None:
        return activation.mean(over), activation.var(over, correction=0)
    values = activation.flatten(2) if activation.ndim > 2 else activation.unsqueeze(2)
    weights = weights.to(values.dtype)
    mean = weights @ values.mean(2)
    return mean, weights @ (values - mean.unsqueeze(1)).square().mean(2)


def batch_input(layer: nn.Module, a: Tensor) -> Tensor:
    """Return what a layer takes its batch statistics of: for CN, the activation after its group normalization."""
    return layer.normalize_groups(a) if isinstance(layer, CN) else a


def balanced_weights(ids: Tensor) -> Tensor:
    """Return one weight per sample: all tasks in the batch weigh the same, and so do the samples of a task.

    Example:
        >>> balanced_weights(torch.tensor([0, 0, 1])).tolist()
        [0.25, 0.25, 0.5]
    """
    _, members, counts = ids.unique(return_inverse=True, return_counts=True)
    return 1 / (len(counts) * counts[members]).double()


def set_statistics(layer: nn.Module, mean: Tensor, var: Tensor) -> None:
    buffers = dict(layer.named_buffers())
    buffers["running_mean"].copy_(mean)
    buffers["running_var"].copy_(var)
    # Mark as updated: a layer whose variance starts at 0 counts it as 1 until the first update.
    buffers["num_batches_tracked"].clamp_(min=1)


class Estimates:
    """The statistics of every layer in every batch of a pass, and the weights of the samples of the present batch."""

    def __init__(self, layers: Sequence[nn.Module]):
        self.layers = layers
        self.by_layer: list[list[Statistics]] = [[] for _ in layers]
        self.weights: Tensor | None = None

    def apply(self) -> None:
        """Set the running statistics to the averages over the batches; a layer that did not run keeps its own."""
        for layer, batches in zip(self.layers, self.by_layer, strict=True):
            if batches:
                means, variances = zip(*batches, strict=True)
                set_statistics(layer, torch.stack(means).mean(0), torch.stack(variances).mean(0))


@contextmanager
def estimate_statistics(layers: Sequence[nn.Module]) -> Iterator[Estimates]:
    """Let layers in eval mode normalize with the statistics of each batch, and collect these."""
    estimates = Estimates(layers)

    def use_batch(number: int, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        statistics = batch_mean_var(batch_input(layer, inputs[0]), estimates.weights)
        set_statistics(layer, *statistics)
        estimates.by_layer[number].append(statistics)

    hooks = [layer.register_forward_pre_hook(partial(use_batch, number)) for number, layer in enumerate(layers)]
    try:
        yield estimates
    finally:
        for hook in hooks:
            hook.remove()
