"""`adab2n`: AdaB²N as an option of the command line. The algorithm is in `backbone/adab2n/adab2n.py`.

Tasks are what the paper balances. Where they are not known, other groups of samples take their place
(`--balance_groups`): classes, current against replayed samples, or none at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from backbone.adab2n.adab2n import task_weights
from backbone.adab2n.weighted import SampleWeights
from backbone.norms import fidelity_option
from backbone.norms.family import NORM_IMPL, BatchNormFamily, FamilyBatchNorm, FamilyPass
from utils.config.options import WITHOUT_BOUNDARIES, ByFidelity, Option, Rule, added_option, choice, integer, number
from utils.config.registry import NORMS
from utils.errors import UsageError
from utils.step import Batch

GROUPS = (
    "Whose contributions are balanced: tasks (the paper), classes, current against replayed samples; "
    "none: plain batch statistics."
)
ABSENT = (
    "Seen tasks (or other --balance_groups) without a sample in the batch: counted in the normalizer (weights sum "
    "to less than 1) or not."
)
VARIANCE = "Variance about the mixture's mean, or mixture of the variances within tasks (or other --balance_groups)."
VAR_START = "Running variance before the first batch (0 is evaluated as 1 until then)."


def _check_boundary(config: dict[str, Any], explicit: dict[str, Any]) -> None:
    for name, value in (("balance_groups", "task"), ("ada_t0", 1)):
        if config["boundary"] != "sharp" and config[name] == value:
            raise UsageError(f"--{name} {value} needs known task boundaries, which --boundary {config['boundary']} "
                             "does not have; remove it")  # fmt: skip


OPTIONS = (
    Option("kappa", number(0, 1), "Momentum between cumulative (0) and exponential (1) average.", default=0.7),
    Option("lambd", number(0), "Weight of the penalty on the distance to the running statistics.", default=0.01),
    Option("eta", number(0, 1, exclusive=True), "Momentum of the running statistics.", default=0.1),
    Option("ada_t0", integer(0, 1), "First task that has the penalty, counted from 0.", default=0),
    added_option("balance_groups", choice("task", "class", "source", "none"), GROUPS, "task", check=_check_boundary),
    fidelity_option("absent_tasks", "counted", "ignored", ABSENT),
    fidelity_option("variance", "mixture", "within", VARIANCE),
    fidelity_option("eta_start", "eta0", "eta1", "Momentum of the very first batch in the recursion."),
    fidelity_option("penalty_norm", "mean", "sum", "Squared distance per layer: mean over channels, or their sum."),
    Option("running_var_start", integer(0, 1), VAR_START, default=ByFidelity(official=1, paper=0)),
    fidelity_option("penalty_steps", "replay", "all", "Steps with the penalty: only those that replay, or all."),
    NORM_IMPL,
)


class AdaptiveBalance(BatchNormFamily):
    """AdaB²N of one network; see `backbone.adab2n.adab2n` for the algorithm, and `OPTIONS` for the arguments."""

    def __init__(self, *, norm_impl: str, kappa: float, eta: float, running_var_start: int, **options: Any):
        super().__init__(norm_impl=norm_impl)
        self.first_eta, self.eta_factor = eta**kappa, (1 - eta) ** kappa
        if options["eta_start"] == "eta1":
            self.first_eta /= self.first_eta + self.eta_factor
        self.running_var_start, self.options = float(running_var_start), options
        self.balance_groups = options["balance_groups"]
        self.psi = nn.ParameterList()  # one (layers,) vector per group seen, so that it grows by appending
        self.stacked_psi: Tensor | None = None  # psi as one tensor while a compiled graph needs it

    def begin_task(self, n_classes: int) -> list[nn.Parameter]:
        return self.grow({"task": len(self.psi) + 1, "class": n_classes, "source": 2, "none": 0}[self.balance_groups])

    def grow(self, n_groups: int) -> list[nn.Parameter]:
        """Add psi = 0 up to so many groups; returns the new parameters."""
        new = [nn.Parameter(self.dtype_anchor.new_zeros(self.n_layers)) for _ in range(len(self.psi), n_groups)]
        self.psi.extend(new)
        return new

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.grow(sum(key.startswith(f"{prefix}psi.") for key in state_dict))
        super()._load_from_state_dict(state_dict, prefix, *args)

    @contextmanager
    def stacked_for_compile(self) -> Iterator[None]:
        if len(self.psi):
            self.stacked_psi = torch.stack(list(self.psi))
            if len(self.psi) > 1:  # one is always another graph
                torch._dynamo.mark_dynamic(self.stacked_psi, 0)
        try:
            yield
        finally:
            self.stacked_psi = None

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
        has_penalty = task >= self.options["ada_t0"] and (replayed or self.options["penalty_steps"] == "all")
        return self.options["lambd"] if has_penalty else 0.0

    def momentum(self, layer: FamilyBatchNorm) -> Tensor:
        return layer.eta

    def weigh(self, groups: Tensor) -> FamilyPass:
        dtype = self.dtype_anchor.dtype
        psi = torch.stack(list(self.psi)) if self.stacked_psi is None else self.stacked_psi
        members = groups.unsqueeze(1) == torch.arange(len(psi), device=groups.device)  # (samples, groups)
        counts = members.sum(0)
        weights = task_weights(psi, counts.to(dtype), self.options["absent_tasks"])  # (groups, layers)
        share = (members / counts.clamp(min=1).double()).to(dtype)  # 1 / N_g where sample n is of group g
        same_group = None
        if self.options["variance"] == "within":
            same = groups.unsqueeze(1) == groups
            same_group = (same / same.sum(1, dtype=torch.float64)).to(dtype)
        by_layer = (weights.T @ share.T).unbind()
        return FamilyPass([SampleWeights(row, same_group=same_group) for row in by_layer], weights)

    def after_update(
        self, layers: Sequence[FamilyBatchNorm], batch: list[Tensor], running: list[Tensor], penalized: bool
    ) -> Tensor | None:
        etas = [layer.eta for layer in layers]  # the recurrence of Eq. 17 in place
        torch._foreach_div_(etas, torch._foreach_add(etas, self.eta_factor))
        if not penalized:
            return None
        norm = self.options["penalty_norm"]
        if torch.compiler.is_compiling():  # in the statistics' kernels, and one sum for all layers
            factors = [len(new) ** -0.5 if norm == "mean" else 1.0 for new in batch]
            return torch.cat([(b - r) * f for b, r, f in zip(batch, running, factors, strict=True)]).square().sum()
        distance = torch.cat(batch) - torch.cat(running)
        sizes = tuple(len(statistic) for statistic in running)
        return distance.square() @ _channel_factors(sizes, norm, distance.dtype, distance.device)


@cache
def _channel_factors(sizes: tuple[int, ...], norm: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the factor of every channel in the penalty: 1 for the sum over channels, 1/C for the mean."""
    factors = [1 / size if norm == "mean" else 1.0 for size in sizes for _ in range(size)]
    return torch.tensor(factors, dtype=dtype, device=device)


@NORMS.register(
    "adab2n",
    help="adaptive balance of batch normalization",
    options=OPTIONS,
    # A sum over channels is larger than their mean by their number, 64 to 512 in the paper's network.
    rules=(
        Rule({"lambd": 0.0001}, when={"penalty_norm": "sum"}),
        # Most classes are absent from a batch: counted, they would leave little of its mean.
        Rule({"balance_groups": "class", "absent_tasks": "ignored"}, when={"boundary": WITHOUT_BOUNDARIES}),
    ),
    shared=AdaptiveBalance,
    joint_replay=True,  # the released code forwards current and replayed samples together for this norm alone
)
def adab2n(channels: int, *, spatial: tuple[int, ...] | None, shared: AdaptiveBalance) -> FamilyBatchNorm:
    return FamilyBatchNorm(channels, shared)
