"""The base class of the package's layers."""

from torch import Tensor, nn


class AnyBatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm with running statistics, for inputs of any number of dimensions."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def _check_input_dim(self, input: Tensor) -> None: ...
