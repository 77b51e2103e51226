"""What the norm layers of one network share: who weighs the samples of a forward pass, and what it costs.

Plain norms share nothing. A norm that looks at tasks registers a subclass with `shared=` (see `backbone.norms.adab2n`).
All state is in parameters and buffers, so that a network can be copied, saved or compiled at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from utils.step import Batch, Normalization


class ForwardPass:
    """One training forward pass. After it, `report` says what the layers did."""

    def __init__(self) -> None:
        self.report = Normalization()  # one object per pass, by which probes tell passes apart


class SharedNormState(nn.Module):
    """Defaults for norms without shared state. A subclass gets the norm's options as keywords."""

    def check_device(self, device: torch.device) -> None:
        """Raise a UsageError if these norms cannot run on the device."""

    def implementation(self, device: torch.device) -> str:
        """Return which of several implementations runs on the device; they differ in rounding."""
        return "torch"

    def begin_task(self, n_classes: int) -> list[nn.Parameter]:
        """Prepare for one more task.

        Args:
            n_classes: Number of classes seen with it and the tasks before.

        Returns:
            Parameters that are new, for the optimizer.
        """
        return []

    def groups(self, batch: Batch, task: int, *, drawn: bool) -> Tensor | None:
        """Return the (N,) group of every sample of a batch, or None for plain batch statistics.

        In a joint forward pass, `forward_pass` gets the groups of all batches in a row. Batches with None are left out.

        Args:
            task: The current task.
            drawn: Whether the batch comes from the buffer. A batch from the stream may hold samples of earlier tasks.
        """
        return batch.tasks

    @contextmanager
    def forward_pass(self, groups: Tensor | None, *, penalized: bool = False) -> Iterator[ForwardPass]:
        """Wrap a network's training forward pass.

        Args:
            groups: (N,) group of every sample; None for plain batch statistics.
            penalized: Whether the penalty is computed.
        """
        yield ForwardPass()

    @contextmanager
    def stacked_for_compile(self) -> Iterator[None]:
        """Make what grows with the tasks one tensor within, so that a compiled graph need not know their number."""
        yield

    def penalty_weight(self, task: int, replayed: bool) -> float:
        """Return the weight of the penalty in the loss of a step of this task, 0 for none."""
        return 0.0


class TasksBegun(SharedNormState):
    """Counts the tasks that have begun: `len(self.begun)`."""

    begun: Tensor

    def __init__(self) -> None:
        super().__init__()
        # One element a task. The count is its size, which the host knows: a value would have to be waited for.
        self.register_buffer("begun", torch.zeros(0, dtype=torch.uint8))

    def begin_task(self, n_classes: int) -> list[nn.Parameter]:
        self.begun = self.begun.new_zeros(len(self.begun) + 1)
        return []

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.begun = self.begun.new_zeros(len(state_dict.get(f"{prefix}begun", self.begun)))
        super()._load_from_state_dict(state_dict, prefix, *args)
