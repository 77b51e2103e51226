"""What the norm layers of one network share: who weighs the samples of a forward pass, and what it costs.

Plain norms share nothing; the base class has the defaults for them. A norm that looks at tasks registers with
`shared=` a subclass of it (see `backbone.norms.adab2n`). All state is in parameters and buffers, so that a network can
be copied, saved or compiled at any time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from utils.config.options import Option, choice
from utils.errors import UsageError
from utils.step import Batch


class ForwardPass:
    """One training forward pass, and the report of what its layers did."""

    def __init__(self) -> None:
        self.report: tuple[Any, ...] = ()  # of `Normalization`, whose defaults say that there is nothing to report


class SharedNormState(nn.Module):
    """Defaults for norms without shared state."""

    options: tuple[Option, ...] = ()

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

        Args:
            task: The current task.
            drawn: Whether the batch comes from the buffer. A batch from the stream may hold samples of earlier tasks.
        """
        return batch.tasks

    def forward_pass(self, groups: Tensor | None, *, penalized: bool = False) -> AbstractContextManager[Any]:
        """Wrap a network's training forward pass.

        Args:
            groups: (N,) group of every sample; None for plain batch statistics.
            penalized: Whether the penalty is computed.

        Returns:
            A context manager whose value has a `report` after the forward pass.
        """
        return _forward_pass()

    @contextmanager
    def stacked_for_compile(self) -> Iterator[None]:
        """Make what grows with the tasks one tensor within, so that a compiled graph need not know their number."""
        yield

    def penalty_weight(self, task: int, replayed: bool) -> float:
        """Return the weight of the penalty in the loss of a step of this task, 0 for none."""
        return 0.0


@contextmanager
def _forward_pass() -> Iterator[ForwardPass]:
    yield ForwardPass()


NORM_IMPL = Option(
    "norm_impl",
    choice("auto", "reference", "fused", "compiled"),
    "implementation of AdaB²N and its relatives: tensor operations (reference), one autograd function in tensor "
    "operations (fused) or in C (compiled); auto: compiled on a CPU with a C compiler, else fused",
    default="auto",
    changes_numbers=False,  # equal up to rounding, as devices and thread counts are
)


class FamilyState(SharedNormState):
    """What the shared states of AdaB²N and its relatives add to `BatchNormFamily`: the option `--norm_impl`."""

    options: tuple[Option, ...] = (NORM_IMPL,)
    impl: str

    def check_device(self, device: torch.device) -> None:
        from backbone.adab2n.c_passes import compile_error

        if self.impl == "compiled" and (device.type == "cuda" or compile_error()):
            raise UsageError(
                f"--norm_impl compiled needs a CPU and a C compiler ({compile_error() or device}); use auto"
            )
        if self.impl == "auto" and device.type == "cpu" and (reason := compile_error()):
            print(f"note: {reason}; norm layers use tensor operations: same numbers, slower", file=sys.stderr)
