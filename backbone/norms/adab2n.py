"""`adab2n`: AdaB²N as an option of the command line. The algorithm is in `backbone/adab2n/adab2n.py`.

Tasks are what the paper balances. Where they are not known, other groups of samples take their place
(`--balance_groups`): classes, current against replayed samples, or none at all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from backbone.norms.family import AdaB2NFamily, FamilyBatchNorm
from backbone.norms.shared import NORM_IMPL, FamilyState
from utils.config.options import ByFidelity, Option, Rule, choice, integer, number
from utils.config.registry import NORMS
from utils.step import Batch

OPTIONS = (
    Option("kappa", number(0, 1), "momentum between cumulative (0) and exponential (1) average", default=0.7),
    Option("lambd", number(0), "weight of the penalty on the distance to the running statistics", default=0.01),
    Option("eta", number(0, 1, exclusive=True), "momentum of the running statistics", default=0.1),
    Option("ada_t0", integer(0, 1), "first task that has the penalty, counted from 0", default=0),
    Option(
        "balance_groups",
        choice("task", "class", "source", "none"),
        "whose contributions are balanced: tasks (the paper), classes, current against replayed samples; "
        "none: plain batch statistics",
        default="task",
        omit_from_hash_at="task",
    ),
    Option(
        "absent_tasks",
        choice("counted", "ignored"),
        "seen tasks (or other --balance_groups) without a sample in the batch: counted in the normalizer (weights sum "
        "to less than 1) or not",
        default=ByFidelity(official="counted", paper="ignored"),
    ),
    Option(
        "variance",
        choice("mixture", "within"),
        "variance about the mixture's mean, or mixture of the variances within tasks (or other --balance_groups)",
        default=ByFidelity(official="mixture", paper="within"),
    ),
    Option(
        "eta_start",
        choice("eta0", "eta1"),
        "momentum of the very first batch in the recursion",
        default=ByFidelity(official="eta0", paper="eta1"),
    ),
    Option(
        "penalty_norm",
        choice("mean", "sum"),
        "squared distance per layer: mean over channels, or their sum",
        default=ByFidelity(official="mean", paper="sum"),
    ),
    Option(
        "running_var_start",
        integer(0, 1),
        "running variance before the first batch (0 is evaluated as 1 until then)",
        default=ByFidelity(official=1, paper=0),
    ),
    Option(
        "penalty_steps",
        choice("replay", "all"),
        "steps with the penalty: only those that replay, or all",
        default=ByFidelity(official="replay", paper="all"),
    ),
    NORM_IMPL,
)


class AdaptiveBalance(AdaB2NFamily, FamilyState):
    """AdaB²N of one network, with the choice of groups and the weight of the penalty."""

    options = OPTIONS

    def __init__(self, *, lambd: float, ada_t0: int, balance_groups: str, penalty_steps: str, **algorithm: Any):
        super().__init__(**algorithm)
        self.lambd, self.first_task, self.penalty_steps = lambd, ada_t0, penalty_steps
        self.balance_groups = balance_groups

    def begin_task(self, n_classes: int) -> list[nn.Parameter]:
        return self.grow({"task": len(self.psi) + 1, "class": n_classes, "source": 2, "none": 0}[self.balance_groups])

    def groups(self, batch: Batch, task: int, *, drawn: bool) -> Tensor | None:
        if self.balance_groups == "none":
            return None
        if self.balance_groups == "source":  # 0: current, 1: replayed
            return torch.ones_like(batch.tasks) if drawn else (batch.tasks < task).long()
        by_class = self.balance_groups == "class"
        highest = int((batch.labels_host if by_class else batch.tasks_host).max())
        if highest >= len(self.psi):  # a forward pass on a device could not see that these samples count for nothing
            raise ValueError(f"a batch holds samples of {self.balance_groups} {highest}, which has not begun")
        return batch.labels if by_class else batch.tasks

    def penalty_weight(self, task: int, replayed: bool) -> float:
        has_penalty = task >= self.first_task and (replayed or self.penalty_steps == "all")
        return self.lambd if has_penalty else 0.0


@NORMS.register(
    "adab2n",
    help="adaptive balance of batch normalization",
    options=OPTIONS,
    # A sum over channels is larger than their mean by their number, 64 to 512 in the paper's network.
    rules=(Rule({"lambd": 0.0001}, when={"penalty_norm": "sum"}),),
    shared=AdaptiveBalance,
    joint_replay=True,  # the released code forwards current and replayed samples together for this norm alone
)
def adab2n(channels: int, *, spatial: tuple[int, ...] | None, shared: AdaptiveBalance) -> FamilyBatchNorm:
    return FamilyBatchNorm(channels, shared)
