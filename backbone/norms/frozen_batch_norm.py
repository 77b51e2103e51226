"""`bn_frozen`: BN whose statistics, after the first tasks, stop moving and normalize in training too."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from backbone.norms.batch_norm import BatchNorm
from backbone.norms.shared import SharedNormState
from utils.config.options import Option, integer
from utils.config.registry import NORMS

FREEZE_AFTER = Option("freeze_after", integer(1), "Tasks after which the statistics of bn_frozen stay.", default=1)


class TasksBegun(SharedNormState):
    """Tells the layers of one network whether their statistics still move."""

    begun: torch.Tensor

    def __init__(self, *, freeze_after: int):
        super().__init__()
        self.freeze_after = freeze_after
        # One element a task. The count is its size, which the host knows: a value would have to be waited for.
        self.register_buffer("begun", torch.zeros(0, dtype=torch.uint8))

    @property
    def frozen(self) -> bool:
        return len(self.begun) > self.freeze_after

    def begin_task(self, n_classes: int) -> list[nn.Parameter]:
        self.begun = self.begun.new_zeros(len(self.begun) + 1)
        return []

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.begun = self.begun.new_zeros(len(state_dict.get(f"{prefix}begun", self.begun)))
        super()._load_from_state_dict(state_dict, prefix, *args)


class FrozenBatchNorm(BatchNorm):
    shared: TasksBegun

    def __init__(self, channels: int, shared: TasksBegun):
        super().__init__(channels)
        object.__setattr__(self, "shared", shared)  # a reference, not a submodule: the network owns it once

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        if not (self.training and self.shared.frozen):
            return super().forward(a)
        return F.batch_norm(a, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


HELP = "BN whose statistics stay as they are after --freeze_after tasks"


@NORMS.register("bn_frozen", help=HELP, options=(FREEZE_AFTER,), shared=TasksBegun, needs_past_tasks=True)
def frozen_batch_norm(channels: int, *, spatial: tuple[int, ...] | None, shared: TasksBegun) -> FrozenBatchNorm:
    return FrozenBatchNorm(channels, shared)
