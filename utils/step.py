"""The values that a training step is made of; streams, buffer, methods, networks and observers all speak in these."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from itertools import repeat
from operator import add

import numpy as np
import torch

CURRENT = "current"  # the name of the stream's batch among those of a step


@dataclass(frozen=True)
class Batch:
    """Samples on their way: from the stream, into and out of the buffer, through the network.

    What the host decides by is mirrored on the host, so that nothing waits for a device.
    """

    images: torch.Tensor  # (N, C, H, W) uint8, as they are stored
    labels: torch.Tensor  # (N,) int64
    tasks: torch.Tensor  # (N,) int64
    labels_host: np.ndarray
    tasks_host: np.ndarray
    inputs: torch.Tensor | None = None  # augmented and normalized, once they are on their way through the network
    logits: torch.Tensor | None = None  # what the network said when a replayed sample was stored

    def __len__(self) -> int:
        return len(self.labels_host)


@dataclass(frozen=True)
class Normalization:
    """What the norm layers did in one training forward. Norms that report nothing leave it empty."""

    layers: tuple[int, ...] = ()  # those that ran, by their number in order of construction
    means: tuple[torch.Tensor, ...] = ()  # (C,) each: the statistics that these layers normalized with
    variances: tuple[torch.Tensor, ...] = ()
    group_weights: torch.Tensor | None = None  # (groups, all layers): each group's weight in them; None: plain batch
    # (N,) for each of these layers: the samples' weights in these statistics, and in what the running ones learn from;
    # None: all count the same.
    sample_weights: tuple[torch.Tensor | None, ...] = ()
    running_weights: tuple[torch.Tensor | None, ...] = ()
    penalty: torch.Tensor | None = None  # to be added to the loss with the norm's weight; None if not asked for


@dataclass(frozen=True)
class Output:
    """What a training forward gave for the samples of one batch."""

    logits: torch.Tensor
    embedding: torch.Tensor  # what the classifier saw
    features: tuple[torch.Tensor, ...]  # the maps that LiDER compares, of networks that have them
    norms: Normalization  # of the whole forward, which samples of other batches may have been part of

    def split(self, sizes: list[int]) -> list[Output]:
        """The parts of the batches that went through the network together."""
        features = (
            zip(*(feature.split(sizes) for feature in self.features), strict=True) if self.features else repeat(())
        )
        rows = zip(self.logits.split(sizes), self.embedding.split(sizes), features, strict=False)
        return [Output(*row, self.norms) for row in rows]


@dataclass(frozen=True)
class Place:
    """Where in the run a step is; its number and its iteration, both counted from 0, address all its randomness.

    With `--replay_iters N` every batch of the stream makes N steps: they have its number, and an iteration each.
    """

    task: int
    step: int
    epoch: int = 0
    iteration: int = 0
    last: bool = True  # of the batch's iterations: the one that the buffer learns from

    @property
    def address(self) -> tuple[int, int]:
        return self.step, self.iteration

    @property
    def first_task(self) -> bool:
        return self.task == 0


@dataclass(frozen=True)
class Step:
    """One training step as it happened. It holds the step's graph and activations: look, and let go."""

    place: Place
    batches: dict[str, Batch]  # `CURRENT` and the draws from the buffer
    outputs: dict[str, Output] = field(default_factory=dict)
    losses: dict[str, torch.Tensor] = field(default_factory=dict)  # the parts of the loss with their weights
    loss: torch.Tensor | None = None  # None where a method only collects


def forwards_of(outputs: dict[str, Output]) -> list[Normalization]:
    """What the norms did in every forward of a step: in a joint one all outputs share it."""
    return list({id(output.norms): output.norms for output in outputs.values()}.values())


def total(terms) -> torch.Tensor:
    """Added one after the other, in their order."""
    return reduce(add, terms)
