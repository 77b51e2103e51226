"""AdaB²N and its relatives for whole networks: all layers of a network at once.

`backbone.adab2n.AdaB2N` normalizes one layer by itself. Here the layers of a network share one `BatchNormFamily`, which
computes sample weights, running updates and the penalty for all of them together: the same numbers in fewer operations.
A member of the family says how samples are weighted and with which momentum the running statistics move.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from backbone.adab2n.weighted import UNIFORM, Normalized, SampleWeights, get_passes, no_autocast, weighted_batch_norm
from backbone.norms.group_norm import EPS
from backbone.norms.shared import ForwardPass, SharedNormState
from utils.config.options import Option, choice
from utils.errors import TOO_FEW_VALUES, UsageError
from utils.step import Normalization

NORM_IMPL = Option(
    "norm_impl",
    choice("auto", "reference", "fused", "compiled"),
    "Implementation of AdaB²N and its relatives: tensor operations (reference), one autograd function in tensor "
    "operations (fused) or in C (compiled); auto: compiled on a CPU with a C compiler, else fused.",
    default="auto",
    changes_numbers=False,  # equal up to rounding, as devices and thread counts are
)


class FamilyPass(ForwardPass):
    """A training forward pass: the layers look up their weights and leave what they computed."""

    def __init__(self, by_layer: list[SampleWeights], group_weights: Tensor | None = None):
        self.by_layer, self.group_weights = by_layer, group_weights
        self.results: dict[int, tuple[FamilyBatchNorm, Normalized]] = {}


class BatchNormFamily(SharedNormState):
    """The state that the layers of one network share. In this base class all samples count the same."""

    unbiased_running_var = False
    running_var_start = 1.0
    first_eta: float | None = None  # momentum of the first batch, for members whose layers have the buffer `eta`
    dtype_anchor: Tensor

    def __init__(self, *, norm_impl: str):
        super().__init__()
        self.impl = norm_impl
        self.n_layers = 0
        self.current_pass: FamilyPass | None = None
        # New parameters take its device and type, which change with the network's.
        self.register_buffer("dtype_anchor", torch.empty(0), persistent=False)

    def implementation(self, device: torch.device) -> str:
        return "reference" if self.impl == "reference" else get_passes(self.impl, device.type).name

    def check_device(self, device: torch.device) -> None:
        from backbone.adab2n.c_passes import compile_error

        if self.impl == "compiled" and (device.type == "cuda" or compile_error()):
            lack = compile_error() or device
            raise UsageError(f"--norm_impl compiled needs a CPU and a C compiler ({lack}); use auto")
        if self.impl == "auto" and device.type == "cpu" and (reason := compile_error()):
            print(f"note: {reason}; norm layers use tensor operations: same numbers, slower", file=sys.stderr)

    def momentum(self, layer: FamilyBatchNorm) -> float | Tensor:
        """Return the momentum of the layer's next running update; a tensor where it changes with every batch."""
        raise NotImplementedError

    def weigh(self, groups: Tensor) -> FamilyPass:
        """Return a forward pass with the sample weights of every layer, for samples of these groups (N,)."""
        return FamilyPass([UNIFORM] * self.n_layers)

    def after_update(
        self, layers: Sequence[FamilyBatchNorm], batch: list[Tensor], running: list[Tensor], penalized: bool
    ) -> Tensor | None:
        """Return the penalty, after the running statistics moved towards the (differentiable) ones of the batch."""
        return None

    @contextmanager
    def forward_pass(self, groups: Tensor | None, *, penalized: bool = False) -> Iterator[FamilyPass]:
        with no_autocast(self.dtype_anchor.device):
            this = FamilyPass([UNIFORM] * self.n_layers) if groups is None else self.weigh(groups)
        self.current_pass = this
        try:
            yield this
        finally:
            self.current_pass = None
        if this.results:
            with no_autocast(self.dtype_anchor.device):
                this.report = self._finish(this, penalized)

    def _finish(self, this: FamilyPass, penalized: bool) -> Normalization:
        """Update the running statistics of the layers that ran; the others are left as they are."""
        numbers = sorted(this.results)
        layers, results = zip(*(this.results[number] for number in numbers), strict=True)
        weights = [this.by_layer[number] for number in numbers]
        batch = [result.running_mu for result in results] + [result.running_sigma2 for result in results]
        running = [layer.running_mean for layer in layers] + [layer.running_var for layer in layers]
        momenta = [self.momentum(layer) for layer in layers] * 2
        with torch.no_grad():
            for old, new, momentum in zip(running, batch, momenta, strict=True):
                old.lerp_(new, momentum.to(old.dtype) if isinstance(momentum, Tensor) else momentum)
            torch._foreach_add_([layer.num_batches_tracked for layer in layers], 1)
        return Normalization(
            layers=tuple(numbers),
            means=tuple(result.mu for result in results),
            variances=tuple(result.sigma2 for result in results),
            group_weights=this.group_weights,
            sample_weights=tuple(by.weights for by in weights),
            running_weights=tuple(by.weights if by.running is None else by.running for by in weights),
            penalty=self.after_update(layers, batch, running, penalized),
        )


def balanced_weights(groups: Tensor, dtype: torch.dtype) -> Tensor:
    """Return (N,) weights with which every group in the batch counts the same, without waiting for a device."""
    same = groups.unsqueeze(1) == groups
    is_first = ~same.tril(-1).any(1)  # of its group
    return (1 / same.sum(1, dtype=torch.float64) / is_first.sum()).to(dtype)


class FamilyBatchNorm(nn.Module):
    """One layer of a network: scale, shift, running statistics and what their momentum depends on."""

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
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))
        if shared.first_eta is not None:
            self.register_buffer("eta", torch.tensor(shared.first_eta, dtype=torch.float64))
        self.number = shared.n_layers
        shared.n_layers += 1
        object.__setattr__(self, "shared", shared)  # a reference, not a submodule: the network owns it once

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> FamilyBatchNorm:
        """Keep eta in float64, whatever the type of the network: a rounded momentum would go astray."""
        exact = self._buffers.get("eta")
        super()._apply(fn, recurse)
        if exact is not None:
            self.eta = exact.to(self.running_mean.device)
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
            raise RuntimeError("a layer of this norm trains once in a forward pass of its network: call the network")
        if a.numel() <= a.shape[1]:
            raise ValueError(f"{TOO_FEW_VALUES} when training, got input size {tuple(a.shape)}")
        result = weighted_batch_norm(a, this.by_layer[self.number], self.weight, self.bias, EPS, self.shared.impl)
        if self.shared.unbiased_running_var:
            count = a.numel() // a.shape[1]
            result = result._replace(running_sigma2=result.running_sigma2 * (count / (count - 1)))
        this.results[self.number] = self, result
        return result.out
