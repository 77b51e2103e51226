"""`er_ace`: ER with Asymmetric Cross-Entropy (Caccia et al. 2022).

The current batch competes only with the classes in it and those not yet seen, so that it does not push away
the representations of old classes; the replayed batch competes with all. Both start with the second task.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from models.method import Method
from utils.config.registry import MODELS
from utils.step import CURRENT


def closed_classes(labels: torch.Tensor, highest_seen: torch.Tensor, n_classes: int) -> torch.Tensor:
    """Which classes the current batch does not compete with: all but those in it, and those from the highest seen on
    while any is unseen."""
    first_open = torch.where(highest_seen < n_classes - 1, highest_seen, n_classes)
    return (torch.arange(n_classes, device=labels.device) < first_open).index_fill_(0, labels, False)


@MODELS.register("er_ace", help="experience replay with asymmetric cross-entropy")
class ErAce(Method):
    needs_own_classes = True
    compiles = True
    draw_names = ("replay",)

    def __init__(self, net, config, spec, augment, *more):
        super().__init__(net, config, spec, augment, *more)
        # On the device, where the labels are: the mask of a step is then made without a copy from the host. One tensor
        # for the whole run: a captured graph writes to where it was.
        self.highest_seen = torch.tensor(-1, device=augment.scale.device)

    def due_draws(self, place):
        return super().due_draws(place) if place.task > 0 else ()

    def loss(self, batches, outputs, place):
        current, logits = batches[CURRENT], outputs[CURRENT].logits
        self.highest_seen.copy_(torch.maximum(self.highest_seen, current.labels.max()))
        if not place.first_task:
            closed = closed_classes(current.labels, self.highest_seen, self.n_classes)
            logits = logits.masked_fill(closed, torch.finfo(logits.dtype).min)
        losses = {CURRENT: F.cross_entropy(logits, current.labels)}
        if "replay" in batches:
            losses["replay"] = F.cross_entropy(outputs["replay"].logits, batches["replay"].labels)
        return losses

    def state_dict(self):
        return {"highest_seen": self.highest_seen}

    def load_state_dict(self, state):
        self.highest_seen.copy_(state["highest_seen"])
