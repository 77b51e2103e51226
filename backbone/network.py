"""What every network offers to the methods and the loop.

net(x)                         logits
net(x, tasks=t)                the same; in training, task-aware norms weigh the batch by its samples' tasks
net.forward_features(x, ...)   logits and the feature maps that LiDER compares
net.begin_task()               parameters that came into being with a new task
net.begin_step(...), net.penalty()
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from backbone.norms import NormFactory


class Network(nn.Module):
    """Base class: a subclass builds its layers with `factory` and implements `body`."""

    has_feature_maps = False

    def __init__(self, factory: NormFactory):
        super().__init__()
        self.norms = factory.shared

    def body(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits, and the feature maps of a network that has them."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor, tasks: np.ndarray | None = None) -> torch.Tensor:
        return self.forward_features(x, tasks)[0]

    def forward_features(
        self, x: torch.Tensor, tasks: np.ndarray | None = None
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        if not self.training:
            return self.body(x)
        self.norms.begin_forward(x, tasks)
        result = self.body(x)
        self.norms.end_forward()
        return result

    def begin_task(self) -> list[nn.Parameter]:
        return self.norms.begin_task()

    def begin_step(self, task: int, replayed: bool) -> float:
        return self.norms.begin_step(task, replayed)

    def penalty(self) -> torch.Tensor:
        return self.norms.penalty()
