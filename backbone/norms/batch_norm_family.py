"""The batch-norm family on the weighted primitive: one layer, and what its layers share in a network.

A member is a subclass of `BatchNormFamily` that says how samples are weighted, for normalizing and for the running
statistics, and with which momentum the latter move. Weights and running updates are computed for all layers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import nn

from backbone.norms.group_norm import EPS
from backbone.norms.kernels.weighted import UNIFORM, Normalized, SampleWeights, no_autocast, reference
from backbone.norms.shared import BatchStatistics, ForwardPass, SharedNormState
from utils.config.options import Option, choice
from utils.errors import TOO_FEW_VALUES, UsageError
from utils.step import Normalization

NORM_IMPL = Option(
    "norm_impl",
    choice("auto", "reference", "fused", "compiled", "triton"),
    "how the batch-norm family computes: plain operations, or one function with its passes as tensor operations "
    "(fused), in C (compiled) or as Triton kernels; auto: triton on CUDA, else compiled if there is a C compiler, "
    "else fused",
    default="auto",
    changes_numbers=False,  # equal up to rounding, as devices and thread counts are
)


def weighted_batch_norm(a, by: SampleWeights, gamma, beta, eps: float, impl: str = "auto") -> Normalized:
    """The primitive in the implementation that `--norm_impl` names."""
    if impl == "reference":
        return reference(a, by, gamma, beta, eps)
    from backbone.norms.kernels.fused import fused

    return fused(a, by, gamma, beta, eps, passes_of(impl, a.device.type))


@cache
def passes_of(impl: str, device: str) -> type:
    """Kernels are imported by the runs that use them: not every machine has Triton, or a compiler."""
    if impl == "triton" or (impl == "auto" and device == "cuda" and has_triton()):
        from backbone.norms.kernels.triton_passes import TritonPasses

        return TritonPasses
    if impl == "compiled" or (impl == "auto" and device == "cpu" and why_not_compiled() is None):
        from backbone.norms.kernels.compiled_passes import CompiledPasses

        return CompiledPasses
    from backbone.norms.kernels.fused import TensorPasses

    return TensorPasses


def has_triton() -> bool:
    return find_spec("triton") is not None


def why_not_compiled() -> str | None:
    from backbone.norms.kernels.compiled_passes import why_not

    return why_not()


class Weights(NamedTuple):
    """How the samples of a batch count in every layer, and what that gives their groups where the norm knows."""

    by_layer: list[SampleWeights]
    of_groups: torch.Tensor | None = None  # (groups, layers)


class FamilyPass(ForwardPass):
    """A training forward under way: the layers look up their weights and leave what they computed."""

    def __init__(self, weights: Weights | None, penalized: bool):
        self.weights, self.penalized = weights, penalized
        self.done: dict[int, tuple[WeightedBatchNorm, Normalized]] = {}

    def weights_of(self, layer: int) -> SampleWeights:
        return UNIFORM if self.weights is None else self.weights.by_layer[layer]


class BatchNormFamily(SharedNormState):
    """Shared by the layers of one network. As it stands, every sample counts the same."""

    options: tuple[Option, ...] = (NORM_IMPL,)
    unbiased_running_var = False
    running_var_start = 1.0

    def __init__(self, *, norm_impl: str):
        super().__init__()
        self.impl = norm_impl
        self.n_layers = 0
        self.under_way: FamilyPass | None = None
        # Where new parameters belong, and of which type: it moves with the network.
        self.register_buffer("like", torch.empty(0), persistent=False)

    def check_device(self, device: torch.device) -> None:
        if self.impl == "triton" and device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise UsageError("--norm_impl triton needs a CUDA device (or TRITON_INTERPRET=1, for tests); use auto")
        if self.impl == "triton" and not has_triton():
            raise UsageError("--norm_impl triton needs Triton, which is not installed; use auto")
        if self.impl == "compiled" and (device.type == "cuda" or why_not_compiled()):
            raise UsageError(
                f"--norm_impl compiled needs a CPU and a C compiler ({why_not_compiled() or device}); use auto"
            )
        missing = {"cpu": why_not_compiled, "cuda": lambda: None if has_triton() else "no Triton found"}
        if self.impl == "auto" and (reason := missing.get(device.type, lambda: None)()):
            print(f"note: {reason}; norm layers use tensor operations: same numbers, slower", file=sys.stderr)

    def implementation(self, device: torch.device) -> str:
        return "reference" if self.impl == "reference" else passes_of(self.impl, device.type).name

    # --- what a member decides ---------------------------------------------------------------------------------

    def counters(self) -> dict[str, torch.Tensor]:
        """The buffers that a layer counts its batches with, as they are before the first."""
        return {"updates": torch.zeros((), dtype=torch.int64)}

    def momentum(self, layer: WeightedBatchNorm) -> float | torch.Tensor:
        """Of the layer's next running update; a tensor where it changes, so that nothing waits for a device."""
        raise NotImplementedError

    def weigh(self, groups: Groups) -> Weights | None:
        """The weights in a batch with samples of these groups; None: every sample counts the same."""
        return None

    def after_update(self, layers, batch: list[torch.Tensor], running: list[torch.Tensor], penalized: bool):
        """The running statistics have moved towards the (differentiable) ones of the batch; returns the penalty."""

    # --- the course of a forward -------------------------------------------------------------------------------

    @contextmanager
    def forward_pass(self, groups: torch.Tensor | None, *, penalized: bool = False) -> Iterator[FamilyPass]:
        with no_autocast(self.like.device):
            weights = None if groups is None else self.weigh(Groups(groups, self.like.dtype))
        self.under_way = this = FamilyPass(weights, penalized)
        try:
            yield this
        finally:
            self.under_way = None
        with no_autocast(self.like.device):
            this.report = self._finish(this)

    def _finish(self, this: FamilyPass) -> Normalization:
        """Layers that did not run are left as they are."""
        numbers = sorted(this.done)
        if not numbers:
            return Normalization()
        layers, done = zip(*(this.done[number] for number in numbers), strict=True)
        weights = [this.weights_of(number) for number in numbers]
        batch = [found.running_mu for found in done] + [found.running_sigma2 for found in done]
        running = [layer.running_mean for layer in layers] + [layer.running_var for layer in layers]
        with torch.no_grad():
            move_towards(running, batch, [self.momentum(layer) for layer in layers] * 2)
            torch._foreach_add_([layer.updates for layer in layers], 1)
        return Normalization(
            layers=tuple(numbers),
            means=tuple(found.mu for found in done),
            variances=tuple(found.sigma2 for found in done),
            group_weights=None if this.weights is None else this.weights.of_groups,
            sample_weights=tuple(by.weights for by in weights),
            running_weights=tuple(by.weights if by.running is None else by.running for by in weights),
            penalty=self.after_update(layers, batch, running, this.penalized),
        )


def move_towards(running: list[torch.Tensor], batch: list[torch.Tensor], momenta: list[float | torch.Tensor]) -> None:
    """running += momentum (batch - running), in place."""
    if not isinstance(momenta[0], torch.Tensor):
        torch._foreach_lerp_(running, batch, momenta[0])
        return
    dtype = running[0].dtype
    if running[0].device.type == "cpu" or torch.compiler.is_compiling():
        for old, new, momentum in zip(running, batch, momenta, strict=True):
            old.lerp_(new, momentum.to(dtype))
        return
    # On a device a call costs more than the work: few of them, whatever the number of layers.
    sizes = [len(old) for old in running]
    each = torch.stack(momenta).to(dtype)[_owner_of_channel(tuple(sizes), running[0].device)]
    moved = torch.lerp(torch.cat(running), torch.cat(batch), each)
    torch._foreach_copy_(running, list(moved.split(sizes)))


@cache
def _owner_of_channel(sizes: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """(all channels,) the tensor that each channel of the concatenated ones belongs to."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)).to(device)


class Groups:
    """The groups of a batch's samples, such as their tasks, counted where they are."""

    def __init__(self, of_sample: torch.Tensor, dtype: torch.dtype):
        self.of_sample, self.dtype = of_sample, dtype

    def members(self, n_groups: int) -> torch.Tensor:
        """(samples, groups): whether the sample is of the group."""
        return self.of_sample.unsqueeze(1) == torch.arange(n_groups, device=self.of_sample.device)

    def balanced(self) -> torch.Tensor:
        """(N,) weights with which every present group counts the same."""
        same = self._same()
        is_first = ~same.tril(-1).any(1)  # of its group
        return (1 / same.sum(1, dtype=torch.float64) / is_first.sum()).to(self.dtype)

    def same_group(self) -> torch.Tensor:
        """(N, N) average over the samples of one's own group."""
        same = self._same()
        return (same / same.sum(1, dtype=torch.float64)).to(self.dtype)

    def _same(self) -> torch.Tensor:
        return self.of_sample.unsqueeze(1) == self.of_sample


class WeightedBatchNorm(BatchStatistics):
    """One layer: scale, shift, running statistics and the counters of their momentum."""

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

    def _apply(self, fn, recurse: bool = True) -> WeightedBatchNorm:
        """Counters keep their type, whatever the type of the network: a rounded momentum would go astray."""
        exact = {name: getattr(self, name) for name in self.counter_names}
        super()._apply(fn, recurse)
        for name, counter in exact.items():
            setattr(self, name, counter.to(self.running_mean.device))
        return self

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return self._trained(a) if self.training else self._evaluated(a)

    def _trained(self, a: torch.Tensor) -> torch.Tensor:
        this = self.shared.under_way
        if this is None or self.number in this.done:
            raise RuntimeError(
                "a layer of this norm trains once in a network's forward: call the network, whose `output` brackets "
                "its layers with `norms.forward_pass`"
            )
        if a.numel() <= a.shape[1]:
            # In the words of torch's own layers, so that one place can explain both.
            raise ValueError(f"{TOO_FEW_VALUES} when training, got input size {tuple(a.shape)}")
        found = weighted_batch_norm(a, this.weights_of(self.number), self.weight, self.bias, EPS, self.shared.impl)
        if self.shared.unbiased_running_var:
            count = a.numel() // a.shape[1]
            found = found._replace(running_sigma2=found.running_sigma2 * (count / (count - 1)))
        this.done[self.number] = self, found
        return found.out

    def _evaluated(self, a: torch.Tensor) -> torch.Tensor:
        var = self.running_var
        if self.shared.running_var_start != 1:
            # Until the first batch the statistics are those of an untrained layer, wherever the variance starts.
            var = torch.where(self.updates > 0, var, torch.ones_like(var))
        return nn.functional.batch_norm(a, self.running_mean, var, self.weight, self.bias, training=False, eps=EPS)
