"""What the norm layers of one network share, and the two calls that bracket a network's forward.

The plain norms share nothing: this base class answers every question with "no". A norm that looks at tasks
registers with `shared=` a subclass of it (see `backbone.norms.adab2n`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from utils.config.options import Option


class SharedNormState(nn.Module):
    options: tuple[Option, ...] = ()

    def check_device(self, device: torch.device) -> None:
        """Refuse a device that these norms cannot run on."""

    def begin_task(self) -> list[nn.Parameter]:
        """One more task has been seen; returns parameters that came into being with it."""
        return []

    def begin_forward(self, inputs: torch.Tensor, tasks: np.ndarray | None) -> None:
        """A training forward starts. `tasks` holds each sample's task, or None for plain batch statistics."""

    def end_forward(self) -> None:
        """All layers have run."""

    def begin_step(self, task: int, replayed: bool) -> float:
        """A training step starts; returns the factor of `penalty()` in its loss, 0 where there is none."""
        return 0.0

    def penalty(self) -> torch.Tensor:
        """The penalty of all training forwards since the step began."""
        raise NotImplementedError(f"{type(self).__name__} has no penalty")
