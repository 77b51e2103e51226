"""`der`: Dark Experience Replay (Buzzega et al. 2020): match stored logits of replayed samples, not their labels."""

import torch
from torch.nn import functional as F

from models.method import Method
from utils.config.options import Option, number
from utils.config.registry import MODELS
from utils.step import CURRENT, Batch, Output, StepIndex

ALPHA = Option("alpha", number(0), "Weight of the distance to the stored logits.", default=0.3)


@MODELS.register("der", help="dark experience replay, logits only", options=(ALPHA,))
class Der(Method):
    stores_logits = True
    compiles = True
    draw_names: tuple[str, ...] = ("logits",)

    def loss(self, batches: dict[str, Batch], outputs: dict[str, Output], index: StepIndex) -> dict[str, torch.Tensor]:
        terms = {CURRENT: F.cross_entropy(outputs[CURRENT].logits, batches[CURRENT].labels)}
        if "logits" in batches:
            stored = batches["logits"].logits
            assert stored is not None
            terms["logits"] = self.config.alpha * self.distance(outputs["logits"].logits, stored)
        return terms

    def distance(self, logits: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
        """Return the mean squared distance to the stored logits, without those masked by `--classifier seen`."""
        if self.scores_unseen_classes:
            return F.mse_loss(logits, stored)
        known = stored > torch.finfo(stored.dtype).min
        return F.mse_loss(logits, stored.where(known, logits.detach()), reduction="sum") / known.sum()
