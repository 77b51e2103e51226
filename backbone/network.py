"""What every network offers to the methods and the loop.

net(x)                   logits
net.output(x)            logits, the embedding that the classifier sees, and the feature maps that LiDER compares
net.output(x, tasks)     the same; in training, task-aware norms weigh the batch by its samples' tasks
net.begin_task()         parameters that came into being with a new task
"""

from __future__ import annotations

import torch
from torch import nn

from backbone.norms import NormFactory
from utils.step import Normalization, Output


class Network(nn.Module):
    """Base class: a subclass builds its layers with `factory`, implements `body` and has a `classifier`."""

    n_feature_maps = 0

    def __init__(self, factory: NormFactory):
        super().__init__()
        self.norms = factory.shared

    def body(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """The embedding (samples, features), and the feature maps of a network that has them."""
        raise NotImplementedError

    def output(self, x: torch.Tensor, tasks: torch.Tensor | None = None, *, penalized: bool = False) -> Output:
        """`tasks` are the samples', None for plain batch statistics; `penalized` asks the norms for their penalty."""
        if not self.training:
            embedding, features = self.body(x)
            return Output(self.classifier(embedding), embedding, features, Normalization())
        with self.norms.forward_pass(tasks, penalized=penalized) as this:
            embedding, features = self.body(x)
        return Output(self.classifier(embedding), embedding, features, this.report)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(x).logits

    def begin_task(self) -> list[nn.Parameter]:
        return self.norms.begin_task()
