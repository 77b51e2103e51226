"""`adab2n`: Adaptive Balance of Batch Normalization, the paper's Section 4.

Training (Sec. 4.1): the batch statistics weigh task t by p_t = (phi_t + N_t) / (sum phi + N), Eq. 14, with
phi = exp(psi) and psi one learnable scalar per layer and seen task. A penalty pulls these statistics towards
the running ones, Eq. 15. Testing (Sec. 4.2): the running statistics move with the modified momentum of Eq. 17,
between an exponential (kappa = 1) and a cumulative average (kappa = 0).

Weights, momentum and penalty concern the whole network and live in `AdaptiveBalance`, which the layers share.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from backbone.norms.batch_norm_family import NORM_IMPL, BatchNormFamily, Tasks, WeightedBatchNorm, Weights
from backbone.norms.kernels.weighted import SampleWeights
from utils.config.options import ByFidelity, Option, Rule, choice, integer, number
from utils.config.registry import NORMS

OPTIONS = (
    Option("kappa", number(0, 1), "momentum between cumulative (0) and exponential (1) average", default=0.7),
    Option("lambd", number(0), "weight of the penalty on the distance to the running statistics", default=1.0),
    Option("eta", number(0, 1, exclusive=True), "momentum of the running statistics", default=0.1),
    Option("ada_t0", integer(0, 1), "first task that has the penalty, counted from 0", default=0),
    Option(
        "absent_tasks",
        choice("counted", "ignored"),
        "seen tasks without a sample in the batch: counted in the normalizer (weights sum to less than 1) or not",
        default=ByFidelity(official="counted", paper="ignored"),
    ),
    Option(
        "variance",
        choice("mixture", "within"),
        "variance about the mixture's mean, or mixture of the within-task variances",
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
    """Task weights, momentum and penalty of all AdaB2N layers of one network."""

    options = OPTIONS

    def __init__(
        self,
        *,
        kappa: float,
        lambd: float,
        eta: float,
        ada_t0: int,
        absent_tasks: str,
        variance: str,
        eta_start: str,
        penalty_norm: str,
        running_var_start: int,
        penalty_steps: str,
        norm_impl: str,
    ):
        super().__init__(norm_impl=norm_impl)
        self.kappa, self.lambd, self.base_eta, self.first_task = kappa, lambd, eta, ada_t0
        self.absent_tasks, self.variance = absent_tasks, variance
        self.penalty_norm, self.penalty_steps = penalty_norm, penalty_steps
        self.running_var_start = float(running_var_start)
        self.psi = nn.ParameterList()  # one (layers,) vector per seen task, so that it grows by appending
        self.eta_start = eta_start

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

    # --- task weights, Eq. 14 ----------------------------------------------------------------------------------

    def begin_task(self) -> list[nn.Parameter]:
        self.psi.append(nn.Parameter(self.like.new_zeros(self.n_layers)))
        return [self.psi[-1]]

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        saved = sum(key.startswith(f"{prefix}psi.") for key in state_dict)
        while len(self.psi) < saved:
            self.begin_task()
        super()._load_from_state_dict(state_dict, prefix, *args)

    def check_tasks(self, highest: int) -> None:
        if highest >= len(self.psi):
            raise ValueError(f"a batch holds samples of task {highest}, which has not begun")

    def weigh(self, tasks: Tasks) -> Weights:
        members = tasks.members(len(self.psi))
        counts = members.sum(0)
        of_tasks = self.task_weights(counts.to(tasks.dtype))
        share = (members / counts.clamp(min=1).double()).to(tasks.dtype)  # 1 / N_t where sample n is of task t
        same_task = tasks.same_task() if self.variance == "within" else None
        by_layer = (of_tasks.T @ share.T).unbind()
        return Weights([SampleWeights(of_layer, same_task=same_task) for of_layer in by_layer], of_tasks)

    def task_weights(self, counts: torch.Tensor) -> torch.Tensor:
        """p for all layers: (tasks, layers) from the (tasks,) sample counts of a batch."""
        pseudo = torch.stack(list(self.psi)).exp() + counts.unsqueeze(1)
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
    rules=(Rule({"lambd": 0.01}, when={"penalty_norm": "sum"}),),
    shared=AdaptiveBalance,
    joint_replay=True,  # the released code forwards current and replayed samples together for this norm alone
)
def adab2n(channels, *, spatial, shared):
    return WeightedBatchNorm(channels, shared)
