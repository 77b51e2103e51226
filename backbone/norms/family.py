"""The batch-norm family for whole networks: all layers of a network at once.

`adab2n.AdaB2N` normalizes one layer by itself. Here, the layers of a network share one `BatchNormFamily` module, which
computes task weights, running updates and the penalty for all of them together. The numbers are the same, and a step
makes fewer small operations. A member of the family says how samples are weighted, for normalizing and for the running
statistics, and with which momentum the latter move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, reduce
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from backbone.adab2n.adab2n import distance_to_running, task_weights
from backbone.adab2n.weighted import UNIFORM, Normalized, SampleWeights, get_passes, no_autocast, weighted_batch_norm

EPS = 1e-5
# The words of torch's own layers for a batch that has no variance.
TOO_FEW_VALUES = "Expected more than 1 value per channel"


class LayerWeights(NamedTuple):
    """How the samples of a batch count in every layer, and what that gives their groups where the norm knows."""

    by_layer: list[SampleWeights]
    groups: Tensor | None = None  # (groups, layers)


class Report(NamedTuple):
    """What the layers did in one training forward pass."""

    layers: tuple[int, ...] = ()  # the layers that ran, by their number in order of construction
    means: tuple[Tensor, ...] = ()  # (C,) each: the statistics that these layers normalized with
    variances: tuple[Tensor, ...] = ()
    group_weights: Tensor | None = None  # (groups, layers); None: plain batch statistics
    sample_weights: tuple[Tensor | None, ...] = ()  # (N,) per layer; None: all count the same
    running_weights: tuple[Tensor | None, ...] = ()
    penalty: Tensor | None = None


class FamilyPass:
    """A training forward pass: the layers look up their weights and leave what they computed."""

    def __init__(self, weights: LayerWeights | None, penalized: bool):
        self.weights, self.penalized = weights, penalized
        self.results: dict[int, tuple[FamilyBatchNorm, Normalized]] = {}
        self.report = Report()

    def sample_weights(self, layer: int) -> SampleWeights:
        return UNIFORM if self.weights is None else self.weights.by_layer[layer]


class BatchNormFamily(nn.Module):
    """The state that the layers of one network share. In this base class all samples count the same."""

    unbiased_running_var = False
    running_var_start = 1.0
    dtype_anchor: Tensor

    def __init__(self, *, norm_impl: str = "auto"):
        super().__init__()
        self.impl = norm_impl
        self.n_layers = 0
        self.current_pass: FamilyPass | None = None
        # New parameters take its device and type, which change with the network's.
        self.register_buffer("dtype_anchor", torch.empty(0), persistent=False)

    def implementation(self, device: torch.device) -> str:
        """Return which implementation runs on a device; they differ in rounding."""
        return "reference" if self.impl == "reference" else get_passes(self.impl, device.type).name

    # --- what a member decides ------------------------------------------------------------------------------------

    def counters(self) -> dict[str, Tensor]:
        """Return the buffers with which a layer counts its batches, as they are before the first one."""
        return {"num_batches_tracked": torch.zeros((), dtype=torch.int64)}

    def momentum(self, layer: FamilyBatchNorm) -> float | Tensor:
        """Return the momentum of the layer's next running update; a tensor where it changes with every batch."""
        raise NotImplementedError

    def weigh(self, groups: Groups) -> LayerWeights | None:
        """Return the weights in a batch whose samples are of these groups; None: all samples count the same."""
        return None

    def after_update(
        self, layers: Sequence[FamilyBatchNorm], batch: list[Tensor], running: list[Tensor], penalized: bool
    ) -> Tensor | None:
        """Return the penalty, after the running statistics moved towards the (differentiable) ones of the batch."""
        return None

    # --- the course of a forward pass -----------------------------------------------------------------------------

    @contextmanager
    def forward_pass(self, groups: Tensor | None, *, penalized: bool = False) -> Iterator[FamilyPass]:
        """Wrap a network's training forward pass.

        Args:
            groups: (N,) the group of every sample, such as its task; None for plain batch statistics.
            penalized: Whether the penalty is computed.
        """
        with no_autocast(self.dtype_anchor.device):
            weights = None if groups is None else self.weigh(Groups(groups, self.dtype_anchor.dtype))
        self.current_pass = this = FamilyPass(weights, penalized)
        try:
            yield this
        finally:
            self.current_pass = None
        with no_autocast(self.dtype_anchor.device):
            this.report = self._finish(this)

    def _finish(self, this: FamilyPass) -> Report:
        """Update the running statistics of the layers that ran; the others are left as they are."""
        numbers = sorted(this.results)
        if not numbers:
            return Report()
        layers, results = zip(*(this.results[number] for number in numbers), strict=True)
        weights = [this.sample_weights(number) for number in numbers]
        batch = [result.running_mu for result in results] + [result.running_sigma2 for result in results]
        running = [layer.running_mean for layer in layers] + [layer.running_var for layer in layers]
        with torch.no_grad():
            move_towards(running, batch, [self.momentum(layer) for layer in layers] * 2)
            torch._foreach_add_([layer.num_batches_tracked for layer in layers], 1)
        return Report(
            layers=tuple(numbers),
            means=tuple(result.mu for result in results),
            variances=tuple(result.sigma2 for result in results),
            group_weights=None if this.weights is None else this.weights.groups,
            sample_weights=tuple(by.weights for by in weights),
            running_weights=tuple(by.weights if by.running is None else by.running for by in weights),
            penalty=self.after_update(layers, batch, running, this.penalized),
        )


def move_towards(running: list[Tensor], batch: list[Tensor], momenta: Sequence[float | Tensor]) -> None:
    """Add momentum (batch - running) to `running`, in place."""
    if not isinstance(momenta[0], Tensor):
        torch._foreach_lerp_(running, batch, momenta[0])
        return
    tensors = [momentum for momentum in momenta if isinstance(momentum, Tensor)]
    dtype = running[0].dtype
    if running[0].device.type == "cpu" or torch.compiler.is_compiling():
        for old, new, momentum in zip(running, batch, tensors, strict=True):
            old.lerp_(new, momentum.to(dtype))
        return
    # On a GPU a call costs more than the work: few of them, whatever the number of layers.
    sizes = [len(old) for old in running]
    each = torch.stack(tensors).to(dtype)[_layer_of_channel(tuple(sizes), running[0].device)]
    moved = torch.lerp(torch.cat(running), torch.cat(batch), each)
    torch._foreach_copy_(running, list(moved.split(sizes)))


@cache
def _layer_of_channel(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return, for every channel of the concatenated tensors, the number of the tensor that it belongs to."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)).to(device)


class Groups:
    """The groups of a batch's samples, such as their tasks, counted on the device."""

    def __init__(self, ids: Tensor, dtype: torch.dtype):
        self.ids, self.dtype = ids, dtype

    def members(self, n_groups: int) -> Tensor:
        """Return (samples, groups): whether the sample is of the group."""
        return self.ids.unsqueeze(1) == torch.arange(n_groups, device=self.ids.device)

    def balanced(self) -> Tensor:
        """Return (N,) weights with which every group in the batch counts the same."""
        same = self._same()
        is_first = ~same.tril(-1).any(1)  # of its group
        return (1 / same.sum(1, dtype=torch.float64) / is_first.sum()).to(self.dtype)

    def same_group(self) -> Tensor:
        """Return the (N, N) matrix that averages over the samples of one's own group."""
        same = self._same()
        return (same / same.sum(1, dtype=torch.float64)).to(self.dtype)

    def _same(self) -> Tensor:
        return self.ids.unsqueeze(1) == self.ids


class FamilyBatchNorm(nn.Module):
    """One layer of a network: scale, shift, running statistics and the counters of their momentum."""

    shared: BatchNormFamily
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    eta: Tensor

    def __init__(self, channels: int, shared: BatchNormFamily):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.full((channels,), shared.running_var_start))
        counters = shared.counters()
        self.counter_names = tuple(counters)
        for name, counter in counters.items():
            self.register_buffer(name, counter)
        self.number = shared.n_layers
        shared.n_layers += 1
        object.__setattr__(self, "shared", shared)  # a reference, not a submodule: the network owns it once

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> FamilyBatchNorm:
        """Counters keep their type, whatever the type of the network: a rounded momentum would go astray."""
        exact = {name: getattr(self, name) for name in self.counter_names}
        super()._apply(fn, recurse)
        for name, counter in exact.items():
            setattr(self, name, counter.to(self.running_mean.device))
        return self

    def forward(self, a: Tensor) -> Tensor:
        if self.training:
            return self._normalize_batch(a)
        var = self.running_var
        if self.shared.running_var_start != 1:  # a variance that starts at 0 counts as 1 until the first update
            var = torch.where(self.num_batches_tracked > 0, var, torch.ones_like(var))
        return nn.functional.batch_norm(a, self.running_mean, var, self.weight, self.bias, training=False, eps=EPS)

    def _normalize_batch(self, a: Tensor) -> Tensor:
        this = self.shared.current_pass
        if this is None or self.number in this.results:
            raise RuntimeError(
                "a layer of this norm trains once in a network's forward pass: call the network, whose `output` wraps "
                "its layers with `norms.forward_pass`"
            )
        if a.numel() <= a.shape[1]:
            raise ValueError(f"{TOO_FEW_VALUES} when training, got input size {tuple(a.shape)}")
        by = this.sample_weights(self.number)
        result = weighted_batch_norm(a, by, self.weight, self.bias, EPS, self.shared.impl)
        if self.shared.unbiased_running_var:
            count = a.numel() // a.shape[1]
            result = result._replace(running_sigma2=result.running_sigma2 * (count / (count - 1)))
        this.results[self.number] = self, result
        return result.out


class AdaB2NFamily(BatchNormFamily):
    """AdaB²N for all layers of a network; see `adab2n` for the algorithm.

    Args:
        kappa, eta, absent_tasks, penalty_norm, eta_start: As for `adab2n.AdaB2N`.
        variance: "mixture", about the mean of all tasks (the released code), or "within", the mixture of the variances
            within tasks (the paper).
        running_var_start: Running variance before the first batch: 1 (the released code) or 0 (the paper).
    """

    def __init__(
        self,
        *,
        kappa: float,
        eta: float,
        absent_tasks: str,
        variance: str,
        eta_start: str,
        penalty_norm: str,
        running_var_start: float,
        norm_impl: str = "auto",
    ):
        super().__init__(norm_impl=norm_impl)
        self.kappa, self.base_eta = kappa, eta
        self.absent_tasks, self.variance = absent_tasks, variance
        self.penalty_norm, self.eta_start = penalty_norm, eta_start
        self.running_var_start = float(running_var_start)
        self.psi = nn.ParameterList()  # one (layers,) vector per group seen, so that it grows by appending
        self.stacked_psi: Tensor | None = None  # psi as one tensor while a compiled graph needs it

    def counters(self) -> dict[str, Tensor]:
        eta = torch.tensor(self.base_eta**self.kappa, dtype=torch.float64)
        if self.eta_start == "eta1":
            eta = eta / (eta + (1 - self.base_eta) ** self.kappa)
        return super().counters() | {"eta": eta}

    def momentum(self, layer: FamilyBatchNorm) -> Tensor:
        return layer.eta

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
        """Make psi one tensor within, so that a compiled graph need not know the number of groups."""
        if len(self.psi):
            self.stacked_psi = torch.stack(list(self.psi))
        if len(self.psi) > 1 and self.stacked_psi is not None:  # one is always another graph
            torch._dynamo.mark_dynamic(self.stacked_psi, 0)
        try:
            yield
        finally:
            self.stacked_psi = None

    def weigh(self, groups: Groups) -> LayerWeights:
        psi = torch.stack(list(self.psi)) if self.stacked_psi is None else self.stacked_psi
        members = groups.members(len(psi))
        counts = members.sum(0)
        weights = task_weights(psi, counts.to(groups.dtype), self.absent_tasks)  # (groups, layers)
        share = (members / counts.clamp(min=1).double()).to(groups.dtype)  # 1 / N_g where sample n is of group g
        same_group = groups.same_group() if self.variance == "within" else None
        by_layer = (weights.T @ share.T).unbind()
        return LayerWeights([SampleWeights(row, same_group=same_group) for row in by_layer], weights)

    def after_update(
        self, layers: Sequence[FamilyBatchNorm], batch: list[Tensor], running: list[Tensor], penalized: bool
    ) -> Tensor | None:
        etas = [layer.eta for layer in layers]  # the recurrence of Eq. 17 for all layers at once, in place
        torch._foreach_div_(etas, torch._foreach_add(etas, (1 - self.base_eta) ** self.kappa))
        if not penalized:
            return None
        if torch.compiler.is_compiling():  # a compiler fuses these small sums into the statistics
            terms = [distance_to_running(new, old, self.penalty_norm) for new, old in zip(batch, running, strict=True)]
            return reduce(add, terms)
        distance = torch.cat(batch) - torch.cat(running)
        sizes = tuple(len(statistic) for statistic in running)
        return distance.square() @ _channel_factors(sizes, self.penalty_norm, distance.dtype, distance.device)


@cache
def _channel_factors(sizes: tuple[int, ...], norm: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the factor of every channel in the penalty: 1 for the sum over channels, 1/C for the mean."""
    factors = [1 / size if norm == "mean" else 1.0 for size in sizes for _ in range(size)]
    return torch.tensor(factors, dtype=dtype, device=device)
