"""`er_ace`: ER with Asymmetric Cross-Entropy (Caccia et al. 2022).

The current batch competes only with the classes in it and those not yet seen, so that it does not push away
the representations of old classes; the replayed batch competes with all. Both start with the second task.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from models.method import CURRENT, Method
from utils.config.registry import MODELS
from utils.device import to_device


def open_classes(present: np.ndarray, highest_seen: int, n_classes: int) -> np.ndarray:
    """Which classes the current batch competes with: those in it, and from the highest seen on while any is unseen."""
    is_open = np.zeros(n_classes, dtype=bool)
    is_open[present] = True
    if highest_seen < n_classes - 1:
        is_open[highest_seen:] = True
    return is_open


@MODELS.register("er_ace", help="experience replay with asymmetric cross-entropy")
class ErAce(Method):
    needs_own_classes = True
    highest_seen = -1

    def draws(self, place):
        return {"replay": self.draw("replay", place)} if place.task > 0 else {}

    def loss(self, parts, outputs, place):
        current, logits = parts[CURRENT], outputs[CURRENT].logits
        self.highest_seen = max(self.highest_seen, int(current.labels_host.max()))
        if place.task > 0:
            is_open = open_classes(current.labels_host, self.highest_seen, self.n_classes)
            closed = to_device(~is_open, torch.empty(0, dtype=torch.bool, device=logits.device))
            logits = logits.masked_fill(closed, torch.finfo(logits.dtype).min)
        loss = F.cross_entropy(logits, current.labels)
        if "replay" in parts:
            loss = loss + F.cross_entropy(outputs["replay"].logits, parts["replay"].labels)
        return loss

    def state_dict(self):
        return {"highest_seen": self.highest_seen}

    def load_state_dict(self, state):
        self.highest_seen = state["highest_seen"]
