"""The base class of networks: what methods and the training loop use of them."""

from contextlib import nullcontext

import torch
from torch import nn

from backbone.norms import NormFactory
from backbone.norms.shared import SharedNormState
from utils.step import Normalization, Output


class Network(nn.Module):
    """A subclass builds its layers with the factory, implements `body` and has a `classifier`.

    Args:
        factory: `factory(channels, spatial=size)` returns a norm layer for maps of this size, () for vectors.
    """

    n_feature_maps = 0
    classifier: nn.Module
    norms: SharedNormState
    unseen: torch.Tensor | None
    autocast_dtype: torch.dtype | None = None  # of convolutions and products in a training forward pass (`--amp`)

    def __init__(self, factory: NormFactory):
        super().__init__()
        self.norms = factory.shared
        # (classes,) those whose logits are masked, with `--classifier seen`; none before the first task.
        self.register_buffer("unseen", None, persistent=False)

    def body(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Return the embedding (samples, features), and `n_feature_maps` feature maps, which LiDER compares."""
        raise NotImplementedError

    def output(self, x: torch.Tensor, groups: torch.Tensor | None = None, *, penalized: bool = False) -> Output:
        """Return logits, embedding, feature maps, and what the norms did.

        Args:
            x: Normalized images.
            groups: The samples' groups, by which norms may weigh a training batch; None for plain batch statistics.
            penalized: Whether the norms compute their penalty.
        """
        if not self.training:
            embedding, features = self.body(x)
            return Output(self._masked(self.classifier(embedding)), embedding, features, Normalization())
        with torch.autocast(x.device.type, self.autocast_dtype) if self.autocast_dtype else nullcontext():
            with self.norms.forward_pass(groups, penalized=penalized) as this:
                embedding, features = self.body(x)
            logits = self.classifier(embedding)
        return Output(self._masked(logits.to(x.dtype)), embedding, features, this.report)  # the loss is not in half

    def _masked(self, logits: torch.Tensor) -> torch.Tensor:
        return logits if self.unseen is None else logits.masked_fill(self.unseen, torch.finfo(logits.dtype).min)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(x).logits

    def begin_task(self, n_classes: int) -> list[nn.Parameter]:
        """Return the parameters that are new with a task, after which so many classes have been seen."""
        if self.unseen is not None:
            self.unseen = torch.arange(len(self.unseen), device=self.unseen.device) >= n_classes
        return self.norms.begin_task(n_classes)
