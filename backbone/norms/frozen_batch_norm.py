"""`bn_frozen`: BN whose statistics, after the first tasks, stop moving and normalize in training too."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from backbone.norms.batch_norm import BatchNorm
from backbone.norms.shared import TasksBegun
from utils.config.options import Option, integer
from utils.config.registry import NORMS

FREEZE_AFTER = Option("freeze_after", integer(1), "Tasks after which the statistics of bn_frozen stay.", default=1)


class FreezeSchedule(TasksBegun):
    """Tells the layers of one network whether their statistics still move."""

    def __init__(self, *, freeze_after: int):
        super().__init__()
        self.freeze_after = freeze_after

    @property
    def frozen(self) -> bool:
        return len(self.begun) > self.freeze_after


class FrozenBatchNorm(BatchNorm):
    shared: FreezeSchedule

    def __init__(self, channels: int, shared: FreezeSchedule):
        super().__init__(channels)
        object.__setattr__(self, "shared", shared)  # a reference, not a submodule: the network owns it once

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        if not (self.training and self.shared.frozen):
            return super().forward(a)
        return F.batch_norm(a, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


HELP = "BN whose statistics stay as they are after --freeze_after tasks"


@NORMS.register(
    "bn_frozen", help=HELP, options=(FREEZE_AFTER,), shared=FreezeSchedule, needs_past_tasks=True, needs_boundaries=True
)
def frozen_batch_norm(channels: int, *, spatial: tuple[int, ...] | None, shared: FreezeSchedule) -> FrozenBatchNorm:
    return FrozenBatchNorm(channels, shared)
