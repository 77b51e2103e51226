"""Relatives of BN from the literature on the same primitive: `bnt`, `tbbn` and `cma`."""

from __future__ import annotations

import torch

from backbone.norms.batch_norm import MOMENTUM
from backbone.norms.batch_norm_family import NORM_IMPL, BatchNormFamily, Groups, WeightedBatchNorm, Weights
from backbone.norms.kernels.weighted import SampleWeights
from utils.config.registry import NORMS


class BalancedRunning(BatchNormFamily):
    """BNT (Zhou et al. 2022): trains like BN; every task of a batch counts the same in the running statistics."""

    def momentum(self, layer) -> float:
        return MOMENTUM

    def weigh(self, groups: Groups) -> Weights:
        return Weights([SampleWeights(running=groups.balanced())] * self.n_layers)


class BalancedThroughout(BatchNormFamily):
    """TBBN (Cha et al. 2023): task-balanced statistics, and task-balanced gradients of the scale and shift."""

    def momentum(self, layer) -> float:
        return MOMENTUM

    def weigh(self, groups: Groups) -> Weights:
        return Weights([SampleWeights(groups.balanced(), balanced_affine=True)] * self.n_layers)


class CumulativeAverage(BatchNormFamily):
    """CMA (Corollary 4 of the paper): BN whose running statistics are the mean over all batches."""

    unbiased_running_var = True

    def momentum(self, layer) -> torch.Tensor:
        return 1 / (layer.updates + 1).double()


@NORMS.register("bnt", help="BN with task-balanced running statistics", options=(NORM_IMPL,), shared=BalancedRunning)
def bnt(channels, *, spatial, shared):
    return WeightedBatchNorm(channels, shared)


@NORMS.register("tbbn", help="task-balanced batch normalization", options=(NORM_IMPL,), shared=BalancedThroughout)
def tbbn(channels, *, spatial, shared):
    return WeightedBatchNorm(channels, shared)


@NORMS.register("cma", help="BN with a cumulative moving average", options=(NORM_IMPL,), shared=CumulativeAverage)
def cma(channels, *, spatial, shared):
    return WeightedBatchNorm(channels, shared)
