"""`derpp`: DER++ (Buzzega et al. 2020): match the stored logits of replayed samples, and learn their labels.

The two terms have independent draws from the buffer, from the second batch on.
"""

import torch
from torch.nn import functional as F

from models.der import Der
from utils.config.options import Option, number
from utils.config.registry import MODELS
from utils.step import Batch, Output, StepIndex

OPTIONS = (
    Option("alpha", number(0), "Weight of the distance to the stored logits.", default=0.1),
    Option("beta", number(0), "Weight of the cross-entropy on replayed labels.", default=0.5),
)


@MODELS.register("derpp", help="dark experience replay, with labels", options=OPTIONS)
class Derpp(Der):
    draw_names: tuple[str, ...] = ("logits", "labels")

    def loss(self, batches: dict[str, Batch], outputs: dict[str, Output], index: StepIndex) -> dict[str, torch.Tensor]:
        terms = super().loss(batches, outputs, index)
        if "labels" in batches:
            terms["labels"] = self.config.beta * F.cross_entropy(outputs["labels"].logits, batches["labels"].labels)
        return terms
