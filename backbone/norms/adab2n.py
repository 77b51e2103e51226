"""`adab2n`: Adaptive Balance of Batch Normalization, the paper's Section 4.

Training (Sec. 4.1): the batch statistics weigh task t by p_t = (phi_t + N_t) / (sum phi + N), Eq. 14, with
phi = exp(psi) and psi one learnable scalar per layer and seen task. A penalty pulls these statistics towards
the running ones, Eq. 15. Testing (Sec. 4.2): the running statistics move with the modified momentum of Eq. 17,
between an exponential (kappa = 1) and a cumulative average (kappa = 0).

Tasks are what the paper balances. Where they are not known, other groups of samples take their place in Eq. 14
(`--balance_groups`): classes, current against replayed samples, or none at all.

Weights, momentum and penalty concern the whole network and live in `AdaptiveBalance`, which the layers share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import nn

from backbone.norms.batch_norm_family import NORM_IMPL, BatchNormFamily, Groups, WeightedBatchNorm, Weights
from backbone.norms.kernels.weighted import SampleWeights
from utils.config.options import ByFidelity, Option, Rule, choice, integer, number
from utils.config.registry import NORMS
from utils.step import Batch, total

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
        neutral="task",
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


class AdaptiveBalance(BatchNormFamily):
    """Weights of groups, momentum and penalty of all AdaB2N layers of one network."""

    options = OPTIONS

    def __init__(
        self,
        *,
        kappa: float,
        lambd: float,
        eta: float,
        ada_t0: int,
        balance_groups: str,
        absent_tasks: str,
        variance: str,
        eta_start: str,
        penalty_norm: str,
        running_var_start: int,
        penalty_steps: str,
        norm_impl: str,
    ):
        super().__init__(norm_impl=norm_impl)
        self.balance_groups = balance_groups
        self.kappa, self.lambd, self.base_eta, self.first_task = kappa, lambd, eta, ada_t0
        self.absent_tasks, self.variance = absent_tasks, variance
        self.penalty_norm, self.penalty_steps = penalty_norm, penalty_steps
        self.running_var_start = float(running_var_start)
        self.psi = nn.ParameterList()  # one (layers,) vector per seen group, so that it grows by appending
        self.eta_start = eta_start
        self.stacked: torch.Tensor | None = None  # psi as one tensor, (groups, layers), while a graph asks for it

    # --- momentum, Eq. 17 --------------------------------------------------------------------------------------

    def counters(self) -> dict[str, torch.Tensor]:
        eta = torch.tensor(self.base_eta**self.kappa, dtype=torch.float64)
        if self.eta_start == "eta1":
            self._advance([eta])
        return super().counters() | {"eta": eta}

    def _advance(self, etas: list[torch.Tensor]) -> None:
        torch._foreach_div_(etas, torch._foreach_add(etas, (1 - self.base_eta) ** self.kappa))

    def momentum(self, layer: WeightedBatchNorm) -> torch.Tensor:
        return layer.eta

    # --- weights, Eq. 14 ---------------------------------------------------------------------------------------

    def begin_task(self, n_classes: int) -> list[nn.Parameter]:
        return self._grow({"task": len(self.psi) + 1, "class": n_classes, "source": 2, "none": 0}[self.balance_groups])

    def _grow(self, n_groups: int) -> list[nn.Parameter]:
        """To at least so many groups; returns the psi of the new ones."""
        new = [nn.Parameter(self.like.new_zeros(self.n_layers)) for _ in range(len(self.psi), n_groups)]
        self.psi.extend(new)
        return new

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        self._grow(sum(key.startswith(f"{prefix}psi.") for key in state_dict))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def table(self) -> torch.Tensor:
        """psi of all groups, (groups, layers)."""
        return torch.stack(list(self.psi)) if self.stacked is None else self.stacked

    @contextmanager
    def grown_as_tensors(self) -> Iterator[None]:
        if len(self.psi):
            self.stacked = torch.stack(list(self.psi))
        if len(self.psi) > 1:  # one is always another graph
            torch._dynamo.mark_dynamic(self.stacked, 0)
        try:
            yield
        finally:
            self.stacked = None

    def groups(self, batch: Batch, task: int, *, drawn: bool) -> torch.Tensor | None:
        if self.balance_groups == "none":
            return None
        if self.balance_groups == "source":  # 0: current, 1: replayed
            return torch.ones_like(batch.tasks) if drawn else (batch.tasks < task).long()
        by_class = self.balance_groups == "class"
        highest = int((batch.labels_host if by_class else batch.tasks_host).max())
        if highest >= len(self.psi):  # a forward on a device could not see that these samples count for nothing
            raise ValueError(f"a batch holds samples of {self.balance_groups} {highest}, which has not begun")
        return batch.labels if by_class else batch.tasks

    def weigh(self, groups: Groups) -> Weights:
        psi = self.table()
        members = groups.members(len(psi))
        counts = members.sum(0)
        of_groups = self.group_weights(psi, counts.to(groups.dtype))
        share = (members / counts.clamp(min=1).double()).to(groups.dtype)  # 1 / N_g where sample n is of group g
        same_group = groups.same_group() if self.variance == "within" else None
        by_layer = (of_groups.T @ share.T).unbind()
        return Weights([SampleWeights(of_layer, same_group=same_group) for of_layer in by_layer], of_groups)

    def group_weights(self, psi: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """p for all layers: (groups, layers) from the (groups,) sample counts of a batch."""
        pseudo = psi.exp() + counts.unsqueeze(1)
        counted = pseudo if self.absent_tasks == "counted" else pseudo * (counts > 0).unsqueeze(1)
        return pseudo / counted.sum(0)

    # --- penalty, Eq. 15 ---------------------------------------------------------------------------------------

    def penalty_weight(self, task: int, replayed: bool) -> float:
        due = task >= self.first_task and (replayed or self.penalty_steps == "all")
        return self.lambd if due else 0.0

    def after_update(self, layers, batch, running, penalized: bool) -> torch.Tensor | None:
        """The distance to the running statistics that have just been updated."""
        self._advance([layer.eta for layer in layers])
        if not penalized:
            return None
        if torch.compiler.is_compiling():  # small sums, which join the computation of the statistics
            squares = [(new - old).square() for new, old in zip(batch, running, strict=True)]
            return total(each.mean() if self.penalty_norm == "mean" else each.sum() for each in squares)
        distance = torch.cat(batch) - torch.cat(running)
        sizes = tuple(len(statistic) for statistic in running)
        return distance.square() @ _factor_of_channels(sizes, self.penalty_norm, distance.dtype, distance.device)


@cache
def _factor_of_channels(sizes: tuple[int, ...], norm: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """1 for the sum over channels, 1/C for the mean, of every channel of every layer."""
    factors = [1 / size if norm == "mean" else 1.0 for size in sizes for _ in range(size)]
    return torch.tensor(factors, dtype=dtype, device=device)


@NORMS.register(
    "adab2n",
    help="adaptive balance of batch normalization",
    options=OPTIONS,
    # A sum over channels is larger than their mean by their number, 64 to 512 in the paper's network.
    rules=(Rule({"lambd": 0.0001}, when={"penalty_norm": "sum"}),),
    shared=AdaptiveBalance,
    joint_replay=True,  # the released code forwards current and replayed samples together for this norm alone
)
def adab2n(channels, *, spatial, shared):
    return WeightedBatchNorm(channels, shared)
