"""What the norm layers of one network have in common: who weighs the samples of a forward, and what it costs.

The plain norms have nothing in common: this base class answers every question with "no". A norm that looks at tasks
registers with `shared=` a subclass of it (see `backbone.norms.adab2n`).

State lives in parameters and buffers alone. Between two forwards there is nothing else, so a network can be copied,
saved or compiled at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from utils.config.options import Option
from utils.step import Batch, Normalization


class ForwardPass:
    """One training forward: what its layers look up, and what they did once it is over."""

    def __init__(self):
        self.report = Normalization()  # one of its own: forwards are told apart by it


class BatchStatistics(nn.Module):
    """A layer of our own with buffers as torch's batch norm has them, `running_mean` and `running_var`, which it
    normalizes with in eval mode once it has counted `updates`."""


class SharedNormState(nn.Module):
    options: tuple[Option, ...] = ()

    def check_device(self, device: torch.device) -> None:
        """Refuse a device that these norms cannot run on."""

    def implementation(self, device: torch.device) -> str:
        """Which of several ways to compute the layers use there: they differ in rounding."""
        return "torch"

    def begin_task(self, n_classes: int) -> list[nn.Parameter]:
        """One more task has been seen, and so many classes with it and those before; returns parameters that came into
        being with it."""
        return []

    def groups(self, batch: Batch, task: int, *, drawn: bool) -> torch.Tensor | None:
        """(N,) the group of every sample of a step of this task, None for plain batch statistics. A batch is `drawn`
        from the buffer, or comes from the stream; samples of earlier tasks may have joined it there."""
        return batch.tasks

    @contextmanager
    def forward_pass(self, groups: torch.Tensor | None, *, penalized: bool = False) -> Iterator[ForwardPass]:
        """Around a network's training forward. `groups` holds each sample's group, such as its task, or None for plain
        batch statistics; `penalized` asks for the penalty."""
        yield ForwardPass()

    @contextmanager
    def grown_as_tensors(self) -> Iterator[None]:
        """Around a compiled forward: what becomes more with tasks is one tensor within, so that a graph need not know
        how many there are."""
        yield

    def penalty_weight(self, task: int, replayed: bool) -> float:
        """The factor of the penalty in the loss of a step of this task, 0 where there is none."""
        return 0.0
