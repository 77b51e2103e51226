"""Relatives of BN from the literature on the same weighted statistics: `bnt`, `tbbn` and `cma`."""

from __future__ import annotations

from torch import Tensor

from backbone.adab2n.weighted import SampleWeights
from backbone.norms.batch_norm import MOMENTUM
from backbone.norms.family import BatchNormFamily, FamilyBatchNorm, Groups, LayerWeights
from backbone.norms.shared import NORM_IMPL, FamilyState
from utils.config.registry import NORMS


class BalancedRunning(BatchNormFamily, FamilyState):
    """BNT (Zhou et al. 2022): trains like BN; every task of a batch counts the same in the running statistics."""

    def momentum(self, layer: FamilyBatchNorm) -> float:
        return MOMENTUM

    def weigh(self, groups: Groups) -> LayerWeights:
        return LayerWeights([SampleWeights(running=groups.balanced())] * self.n_layers)


class TaskBalancedBN(BatchNormFamily, FamilyState):
    """TBBN (Cha et al. 2023): task-balanced statistics, and task-balanced gradients of the scale and shift."""

    def momentum(self, layer: FamilyBatchNorm) -> float:
        return MOMENTUM

    def weigh(self, groups: Groups) -> LayerWeights:
        return LayerWeights([SampleWeights(groups.balanced(), balanced_affine=True)] * self.n_layers)


class CumulativeAverage(BatchNormFamily, FamilyState):
    """CMA (Corollary 4 of the paper): BN whose running statistics are the mean over all batches."""

    unbiased_running_var = True

    def momentum(self, layer: FamilyBatchNorm) -> Tensor:
        return 1 / (layer.num_batches_tracked + 1).double()


Spatial = tuple[int, ...] | None


@NORMS.register("bnt", help="BN with task-balanced running statistics", options=(NORM_IMPL,), shared=BalancedRunning)
def bnt(channels: int, *, spatial: Spatial, shared: BalancedRunning) -> FamilyBatchNorm:
    return FamilyBatchNorm(channels, shared)


@NORMS.register("tbbn", help="task-balanced batch normalization", options=(NORM_IMPL,), shared=TaskBalancedBN)
def tbbn(channels: int, *, spatial: Spatial, shared: TaskBalancedBN) -> FamilyBatchNorm:
    return FamilyBatchNorm(channels, shared)


@NORMS.register("cma", help="BN with a cumulative moving average", options=(NORM_IMPL,), shared=CumulativeAverage)
def cma(channels: int, *, spatial: Spatial, shared: CumulativeAverage) -> FamilyBatchNorm:
    return FamilyBatchNorm(channels, shared)
