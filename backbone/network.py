"""What every network offers to the methods and the loop.

net(x)                   logits
net.output(x)            logits, the embedding that the classifier sees, and the feature maps that LiDER compares
net.output(x, groups)    the same; in training, norms that look at groups weigh the batch by its samples' groups
net.begin_task(classes)  parameters that came into being with a new task; so many classes are seen with it
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn

from backbone.norms import NormFactory
from backbone.norms.shared import SharedNormState
from utils.step import Normalization, Output


class Network(nn.Module):
    """Base class: a subclass builds its layers with `factory`, implements `body` and has a `classifier`."""

    n_feature_maps = 0
    classifier: nn.Module
    norms: SharedNormState
    autocast_dtype: torch.dtype | None = None  # of convolutions and products in a training forward pass (`--amp`)

    def __init__(self, factory: NormFactory):
        super().__init__()
        self.norms = factory.shared

    def body(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """The embedding (samples, features), and the feature maps of a network that has them."""
        raise NotImplementedError

    def output(self, x: torch.Tensor, groups: torch.Tensor | None = None, *, penalized: bool = False) -> Output:
        """`groups` are the samples', None for plain batch statistics; `penalized` asks the norms for their penalty."""
        if not self.training:
            embedding, features = self.body(x)
            return Output(self.classifier(embedding), embedding, features, Normalization())
        with torch.autocast(x.device.type, self.autocast_dtype) if self.autocast_dtype else nullcontext():
            with self.norms.forward_pass(groups, penalized=penalized) as this:
                embedding, features = self.body(x)
            logits = self.classifier(embedding)
        return Output(logits.to(x.dtype), embedding, features, Normalization(*this.report))  # the loss is not in half

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(x).logits

    def begin_task(self, n_classes: int) -> list[nn.Parameter]:
        return self.norms.begin_task(n_classes)
