"""The types of a training step, shared by streams, buffer, methods, networks and observers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from itertools import repeat
from operator import add

import numpy as np
import torch
from torch.nn import functional as F

CURRENT = "current"  # the name of the stream's batch among those of a step


@dataclass(frozen=True)
class Batch:
    """Samples from the stream or the buffer. Labels and tasks have host copies, so that nothing waits for a device."""

    images: torch.Tensor  #: (N, C, H, W) uint8, as they are stored
    labels: torch.Tensor  #: (N,) int64
    tasks: torch.Tensor  #: (N,) int64
    labels_host: np.ndarray
    tasks_host: np.ndarray
    inputs: torch.Tensor | None = None  #: augmented and normalized images, in the batches of a step
    logits: torch.Tensor | None = None  #: the network's logits when the samples were stored, or are offered to be

    def __len__(self) -> int:
        return len(self.labels_host)

    @property
    def losses(self) -> torch.Tensor:
        """The (N,) cross-entropies of the logits, computed when asked for; ValueError if there are no logits."""
        if self.logits is None:
            raise ValueError("a batch without logits has no losses; add it to the buffer with its logits")
        return F.cross_entropy(self.logits.float(), self.labels, reduction="none")


@dataclass(frozen=True)
class Normalization:
    """What the norm layers computed in one training forward pass. Norms that report nothing leave it empty."""

    layers: tuple[int, ...] = ()  # numbers of the layers that ran, in order of construction
    means: tuple[torch.Tensor, ...] = ()  # (C,) for each of these layers: the statistics it normalized with
    variances: tuple[torch.Tensor, ...] = ()
    group_weights: torch.Tensor | None = None  # (groups, all layers): each group's weight; None: plain batch statistics
    # (N,) for each of these layers: the weights of the samples in these statistics, and in the update of the running
    # statistics; None: equal weights.
    sample_weights: tuple[torch.Tensor | None, ...] = ()
    running_weights: tuple[torch.Tensor | None, ...] = ()
    penalty: torch.Tensor | None = None  # to be weighted and added to the loss; None if not requested


@dataclass(frozen=True)
class Output:
    """Result of a training forward pass for the samples of one batch."""

    logits: torch.Tensor
    embedding: torch.Tensor  #: the input of the classifier
    features: tuple[torch.Tensor, ...]  #: feature maps for LiDER, of networks that have them
    norms: Normalization  #: of the whole forward pass, which other batches may have been part of

    def split(self, sizes: list[int]) -> list[Output]:
        """Return the outputs of the batches, of these sizes, that passed the network jointly."""
        maps = zip(*(feature.split(sizes) for feature in self.features), strict=True) if self.features else repeat(())
        rows = zip(self.logits.split(sizes), self.embedding.split(sizes), maps, strict=False)
        return [Output(*row, self.norms) for row in rows]


@dataclass(frozen=True)
class StepIndex:
    """Position of a step in the run. Its number and its iteration, counted from 0, address all its randomness.

    With `--replay_iters N`, a batch of the stream makes N steps with the same number.
    """

    task: int
    step: int
    epoch: int = 0
    iteration: int = 0
    last: bool = True  #: the last iteration of the batch, which fills the buffer

    @property
    def address(self) -> tuple[int, int]:
        return self.step, self.iteration

    @property
    def first_task(self) -> bool:
        return self.task == 0


@dataclass(frozen=True)
class Step:
    """One training step. Keeps the autograd graph alive; do not store."""

    index: StepIndex
    batches: dict[str, Batch]  #: `CURRENT` and the draws from the buffer
    outputs: dict[str, Output] = field(default_factory=dict)
    loss_terms: dict[str, torch.Tensor] = field(default_factory=dict)  #: weighted
    loss: torch.Tensor | None = None  #: None if the method only stores samples


def forwards_of(outputs: dict[str, Output]) -> list[Normalization]:
    """Return the norms' results of every forward pass of a step; the outputs of a joint one share theirs."""
    return list({id(output.norms): output.norms for output in outputs.values()}.values())


def total(terms: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the sum, added one after the other in this order."""
    return reduce(add, terms)
