"""`adab2n`: Adaptive Balance of Batch Normalization, the paper's Section 4.

Training (Sec. 4.1): the batch statistics weigh task t by p_t = (phi_t + N_t) / (sum phi + N), Eq. 14, with
phi = exp(psi) and psi one learnable scalar per layer and seen task. A penalty pulls these statistics towards
the running ones, Eq. 15. Testing (Sec. 4.2): the running statistics move with the modified momentum of Eq. 17,
between an exponential (kappa = 1) and a cumulative average (kappa = 0).

Weights, momentum and penalty are the business of the whole network and live in `AdaptiveBalance`, which the
layers share; a layer owns its scale, its shift and its running statistics.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from backbone.norms.group_norm import EPS
from backbone.norms.shared import SharedNormState
from backbone.norms.weighted import UNIFORM, SampleWeights, weighted_batch_norm
from utils.device import to_device
from utils.options import ByFidelity, Option, choice, integer, number
from utils.registry import NORMS

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
)


class AdaptiveBalance(SharedNormState):
    """Task weights, momentum and penalty of all AdaB2N layers of one network."""

    options = OPTIONS

    def __init__(self, *, kappa, lambd, eta, ada_t0, absent_tasks, variance, eta_start, penalty_norm,
                 running_var_start, penalty_steps):  # fmt: skip
        super().__init__()
        self.kappa, self.lambd, self.base_eta, self.first_task = kappa, lambd, eta, ada_t0
        self.absent_tasks, self.variance = absent_tasks, variance
        self.penalty_norm, self.penalty_steps = penalty_norm, penalty_steps
        self.running_var_start = float(running_var_start)
        self.layers: list[AdaB2N] = []  # a plain list: the network owns the layers
        self.psi = nn.ParameterList()  # one (layers,) vector per seen task, so that it grows by appending
        # The momentum is the same in every layer and a pure function of how many batches have been seen, so it
        # stays on the host: reading it never waits for a device.
        self.next_eta = eta**kappa
        self.updates = 0
        if eta_start == "eta1":
            self._advance_eta()
        self._weights: list[SampleWeights] = []
        self._statistics: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._wants_penalty = False
        self._penalties: list[torch.Tensor] = []

    def _advance_eta(self) -> None:
        self.next_eta = self.next_eta / (self.next_eta + (1 - self.base_eta) ** self.kappa)

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor([self.next_eta, self.updates], dtype=torch.float64)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.next_eta, updates = state.tolist()
        self.updates = int(updates)

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        saved = sum(key.startswith(f"{prefix}psi.") for key in state_dict)
        while len(self.psi) < saved:
            self.begin_task()
        super()._load_from_state_dict(state_dict, prefix, *args)

    def begin_task(self) -> list[nn.Parameter]:
        like = self.layers[0].weight
        self.psi.append(nn.Parameter(torch.zeros(len(self.layers), dtype=like.dtype, device=like.device)))
        return [self.psi[-1]]

    def task_weights(self, counts: torch.Tensor) -> torch.Tensor:
        """p of Eq. 14 for all layers: (tasks, layers) from the (tasks,) sample counts of a batch."""
        pseudo = torch.stack(list(self.psi)).exp() + counts.unsqueeze(1)
        counted = pseudo if self.absent_tasks == "counted" else pseudo * (counts > 0).unsqueeze(1)
        return pseudo / counted.sum(0)

    def begin_forward(self, inputs: torch.Tensor, tasks: np.ndarray | None) -> None:
        self._statistics = {}
        if tasks is None:
            self._weights = [UNIFORM] * len(self.layers)
            return
        member = np.asarray(tasks)[:, None] == np.arange(len(self.psi))  # (samples, tasks)
        if not member.any(1).all():
            raise ValueError(f"tasks {sorted(set(np.asarray(tasks)))} in a batch, but {len(self.psi)} tasks were begun")
        counts = member.sum(0)
        like = self.layers[0].weight
        share = to_device(member / np.maximum(counts, 1), like)  # (samples, tasks): 1 / N_t where sample n is of task t
        weights = share @ self.task_weights(to_device(counts, like))
        same_task = share @ (share > 0).to(share.dtype).T if self.variance == "within" else None
        self._weights = [SampleWeights(column, same_task) for column in weights.unbind(1)]

    def weights_of(self, layer: int) -> SampleWeights:
        return self._weights[layer]

    def collect(self, layer: int, mu: torch.Tensor, sigma2: torch.Tensor) -> None:
        self._statistics[layer] = (mu, sigma2)

    def end_forward(self) -> None:
        """Move all running statistics, then measure the distance to them (Eq. 15)."""
        means, variances = zip(*(self._statistics[i] for i in range(len(self.layers))), strict=True)
        running_means = [layer.running_mean for layer in self.layers]
        running_vars = [layer.running_var for layer in self.layers]
        with torch.no_grad():
            torch._foreach_lerp_(running_means, [mean.detach() for mean in means], self.next_eta)
            torch._foreach_lerp_(running_vars, [var.detach() for var in variances], self.next_eta)
        self._advance_eta()
        self.updates += 1
        self._statistics = {}
        if self._wants_penalty:
            self._penalties.append(self._distance(means, running_means) + self._distance(variances, running_vars))

    def _distance(self, batch: Sequence[torch.Tensor], running: Sequence[torch.Tensor]) -> torch.Tensor:
        squares = (torch.cat(batch) - torch.cat(running)).square()
        if self.penalty_norm == "sum":
            return squares.sum()
        return sum(part.mean() for part in squares.split([len(part) for part in batch]))

    def begin_step(self, task: int, replayed: bool) -> float:
        due = task >= self.first_task and (replayed or self.penalty_steps == "all")
        self._wants_penalty = due and self.lambd > 0
        self._penalties = []
        return self.lambd if self._wants_penalty else 0.0

    def penalty(self) -> torch.Tensor:
        return sum(self._penalties)


class AdaB2N(nn.Module):
    """One layer: scale, shift and running statistics (biased variance, unlike torch's)."""

    def __init__(self, channels: int, shared: AdaptiveBalance):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.full((channels,), shared.running_var_start))
        self.index = len(shared.layers)
        shared.layers.append(self)
        object.__setattr__(self, "shared", shared)  # a reference, not a submodule: the network owns it once

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return self._normalize_for_testing(a)
        if a.numel() == a.shape[1]:
            raise ValueError(f"more than one value per channel is needed in training, got an input of {tuple(a.shape)}")
        out, mu, sigma2 = weighted_batch_norm(a, self.shared.weights_of(self.index), self.weight, self.bias, EPS)
        self.shared.collect(self.index, mu, sigma2)
        return out

    def _normalize_for_testing(self, a: torch.Tensor) -> torch.Tensor:
        var = self.running_var if self.shared.updates else torch.ones_like(self.running_var)
        return nn.functional.batch_norm(a, self.running_mean, var, self.weight, self.bias, training=False, eps=EPS)


@NORMS.register(
    "adab2n",
    help="adaptive balance of batch normalization",
    options=OPTIONS,
    shared=AdaptiveBalance,
    joint_replay=True,  # the released code forwards current and replayed samples together for this norm alone
)
def adab2n(channels, *, spatial, shared):
    return AdaB2N(channels, shared)
