"""Relatives of BN from the literature on the same weighted statistics: `bnt`, `tbbn_weighted` and `cma`."""

from __future__ import annotations

from torch import Tensor

from backbone.adab2n.weighted import SampleWeights
from backbone.norms.batch_norm import MOMENTUM
from backbone.norms.family import NORM_IMPL, BatchNormFamily, FamilyBatchNorm, FamilyPass, balanced_weights
from utils.config.registry import NORMS


class BalancedRunning(BatchNormFamily):
    """BNT (Zhou et al. 2022): trains like BN; every task of a batch counts the same in the running statistics."""

    def momentum(self, layer: FamilyBatchNorm) -> float:
        return MOMENTUM

    def weigh(self, groups: Tensor) -> FamilyPass:
        weights = SampleWeights(running=balanced_weights(groups, self.dtype_anchor.dtype))
        return FamilyPass([weights] * self.n_layers)


class TaskWeightedBN(BalancedRunning):
    """TBBN (Cha et al. 2023) by weights instead of splits, which `tbbn` has: task-balanced statistics, and
    task-balanced gradients of the scale and shift."""

    def weigh(self, groups: Tensor) -> FamilyPass:
        weights = SampleWeights(balanced_weights(groups, self.dtype_anchor.dtype), balanced_affine=True)
        return FamilyPass([weights] * self.n_layers)


class CumulativeAverage(BatchNormFamily):
    """CMA (Corollary 4 of the paper): BN whose running statistics are the mean over all batches."""

    unbiased_running_var = True

    def momentum(self, layer: FamilyBatchNorm) -> Tensor:
        return 1 / (layer.num_batches_tracked + 1).double()


OPTIONS = (NORM_IMPL,)
BNT = "BN with task-balanced running statistics"


@NORMS.register("bnt", help=BNT, options=OPTIONS, shared=BalancedRunning, needs_boundaries=True)
@NORMS.register(
    "tbbn_weighted", help="tbbn by sample weights", options=OPTIONS, shared=TaskWeightedBN, needs_boundaries=True
)
@NORMS.register("cma", help="BN with a cumulative moving average", options=OPTIONS, shared=CumulativeAverage)
def family_batch_norm(channels: int, *, spatial: tuple[int, ...] | None, shared: BatchNormFamily) -> FamilyBatchNorm:
    return FamilyBatchNorm(channels, shared)
