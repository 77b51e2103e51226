"""The batch-norm family on the weighted primitive: one layer, and the state its layers share in a network.

A member is a subclass of `BatchNormFamily` that says how samples are weighted, for normalizing and for the running
statistics, and with which momentum the latter move. Weights, momentum and running updates are computed once per
forward for all layers.
"""

from __future__ import annotations

import os
import sys
from functools import cache

import numpy as np
import torch
from torch import nn

from backbone.norms.group_norm import EPS
from backbone.norms.kernels.compiled_passes import CompiledPasses, why_not
from backbone.norms.kernels.fused import TensorPasses, fused
from backbone.norms.kernels.weighted import UNIFORM, Normalized, SampleWeights, reference
from backbone.norms.shared import SharedNormState
from utils.config.options import Option, choice
from utils.device import to_device
from utils.errors import TOO_FEW_VALUES, UsageError

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
    return fused(a, by, gamma, beta, eps, passes_of(impl, a.device.type))


@cache
def passes_of(impl: str, device: str) -> type:
    if impl == "triton" or (impl == "auto" and device == "cuda"):
        from backbone.norms.kernels.triton_passes import TritonPasses

        return TritonPasses
    if impl == "compiled" or (impl == "auto" and device == "cpu" and why_not() is None):
        return CompiledPasses
    return TensorPasses


class BatchNormFamily(SharedNormState):
    """Shared by the layers of one network. As it stands, every sample counts the same."""

    options: tuple[Option, ...] = (NORM_IMPL,)
    unbiased_running_var = False
    running_var_start = 1.0

    def __init__(self, *, norm_impl: str):
        super().__init__()
        self.impl = norm_impl
        self.layers: list[WeightedBatchNorm] = []  # a plain list: the network owns the layers
        self.updates = 0
        self._weights: list[SampleWeights] = []
        self._statistics: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def check_device(self, device: torch.device) -> None:
        if self.impl == "triton" and device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise UsageError("--norm_impl triton needs a CUDA device (or TRITON_INTERPRET=1, for tests); use auto")
        if self.impl == "compiled" and (device.type == "cuda" or why_not()):
            raise UsageError(f"--norm_impl compiled needs a CPU and a C compiler ({why_not() or device}); use auto")
        if self.impl == "auto" and device.type == "cpu" and why_not():
            print(f"note: {why_not()}; norm layers use tensor operations: same numbers, slower", file=sys.stderr)

    # --- what a member decides ---------------------------------------------------------------------------------

    def momentum(self) -> float:
        """Of the next running update. On the host: reading it never waits for a device."""
        raise NotImplementedError

    def tasks_seen(self) -> int:
        """As far as the norm keeps count."""
        return 0

    def weigh(self, tasks: Tasks) -> list[SampleWeights]:
        """The weights of every layer in a batch with samples of these tasks."""
        return [UNIFORM] * len(self.layers)

    # --- the course of a forward -------------------------------------------------------------------------------

    def begin_forward(self, inputs: torch.Tensor, tasks: np.ndarray | None) -> None:
        self._statistics = {}
        if tasks is None:
            self._weights = [UNIFORM] * len(self.layers)
            return
        known = Tasks(np.asarray(tasks), self.tasks_seen(), self.layers[0].weight)
        with torch.autocast(inputs.device.type, enabled=False):
            self._weights = self.weigh(known)

    def normalize(self, layer: WeightedBatchNorm, a: torch.Tensor) -> torch.Tensor:
        index = layer.index
        done = weighted_batch_norm(a, self._weights[index], layer.weight, layer.bias, EPS, self.impl)
        mu, sigma2 = done.running_mu, done.running_sigma2
        if self.unbiased_running_var:
            count = a.numel() // a.shape[1]
            sigma2 = sigma2 * (count / (count - 1))
        self._statistics[index] = (mu, sigma2)
        return done.out

    def end_forward(self) -> None:
        means, variances = zip(*(self._statistics[layer.index] for layer in self.layers), strict=True)
        self._statistics = {}
        batch = [*means, *variances]
        running = self.running_statistics()
        with torch.no_grad():
            torch._foreach_lerp_(running, batch, self.momentum())
        self.updates += 1
        self.after_update(batch, running)

    def running_statistics(self) -> list[torch.Tensor]:
        return [layer.running_mean for layer in self.layers] + [layer.running_var for layer in self.layers]

    def after_update(self, batch: list[torch.Tensor], running: list[torch.Tensor]) -> None:
        """The running statistics have moved towards the (differentiable) ones of the batch."""

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor([self.updates], dtype=torch.float64)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.updates = int(state[0])


class Tasks:
    """The tasks of a batch: host counts, and the (samples, tasks) matrix of shares on the device."""

    def __init__(self, tasks: np.ndarray, seen: int, like: torch.Tensor):
        self.like = like
        self.counts = np.bincount(tasks, minlength=seen)
        present = np.maximum(self.counts, 1)
        #: 1 / N_t where sample n is of task t, else 0
        self.share = (tasks[:, None] == np.arange(len(self.counts))) / present

    def balanced(self) -> torch.Tensor:
        """(N,) weights with which every present task counts the same."""
        return self.on_device(self.share.sum(1) / np.count_nonzero(self.counts))

    def same_task(self) -> torch.Tensor:
        """(N, N) average over the samples of one's own task."""
        return self.on_device(self.share @ (self.share > 0).T)

    def on_device(self, array: np.ndarray) -> torch.Tensor:
        return to_device(array, self.like)


class WeightedBatchNorm(nn.Module):
    """One layer: scale, shift and running statistics."""

    def __init__(self, channels: int, shared: BatchNormFamily):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.full((channels,), shared.running_var_start))
        self.index = len(shared.layers)
        shared.layers.append(self)
        object.__setattr__(self, "shared", shared)  # a reference, not a submodule: the network owns it once

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        if self.training:
            if a.numel() <= a.shape[1]:
                # In the words of torch's own layers, so that one place can explain both.
                raise ValueError(f"{TOO_FEW_VALUES} when training, got input size {tuple(a.shape)}")
            return self.shared.normalize(self, a)
        # Until the first batch the statistics are those of an untrained layer, wherever the variance starts.
        var = self.running_var if self.shared.updates else torch.ones_like(self.running_var)
        return nn.functional.batch_norm(a, self.running_mean, var, self.weight, self.bias, training=False, eps=EPS)
