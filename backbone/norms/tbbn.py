"""`tbbn`: Task-Balanced Batch Normalization (Cha et al. 2023), as released. The layer is in `backbone/adab2n/tbbn.py`.

All draws of a step together are its replayed samples. They must pass the network in one batch with the current samples,
which come first. Samples of earlier tasks in the stream's batch, such as iCaRL's exemplars, are no draws. In a batch
without draws, in the first task and in evaluation the layer is BN.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from backbone.adab2n.tbbn import TBBN, normalize_splits, number_of_splits
from backbone.norms.shared import ForwardPass, TasksBegun
from utils.config.registry import NORMS
from utils.step import Batch


class TaskSplits(TasksBegun):
    """Tells the layers of one network how many samples of a batch, its last ones, are replayed."""

    n_replayed = 0

    def groups(self, batch: Batch, task: int, *, drawn: bool) -> Tensor | None:
        return batch.tasks if drawn else None

    @contextmanager
    def forward_pass(self, groups: Tensor | None, *, penalized: bool = False) -> Iterator[ForwardPass]:
        self.n_replayed = 0 if groups is None else len(groups)
        try:
            yield ForwardPass()
        finally:
            self.n_replayed = 0


class TaskBalancedBN(TBBN):
    shared: TaskSplits

    def __init__(self, channels: int, shared: TaskSplits):
        super().__init__(channels)
        object.__setattr__(self, "shared", shared)  # a reference, not a submodule: the network owns it once

    def forward(self, a: Tensor) -> Tensor:
        n_current = len(a) - self.shared.n_replayed
        splits = number_of_splits(n_current, self.shared.n_replayed, len(self.shared.begun) - 1)
        if not self.training or splits == 1:
            return super().forward(a)
        result = normalize_splits(a[:n_current], a[n_current:], splits, self.eps)
        return self.finish(torch.cat([result.current, result.replayed]), result).to(a.dtype)


HELP = "task-balanced batch normalization, as released"


# joint_replay: without the replayed samples in its batch, there is nothing to balance.
@NORMS.register("tbbn", help=HELP, shared=TaskSplits, joint_replay=True, needs_boundaries=True, numerics_version=1)
def task_balanced_batch_norm(channels: int, *, spatial: tuple[int, ...] | None, shared: TaskSplits) -> TaskBalancedBN:
    return TaskBalancedBN(channels, shared)
