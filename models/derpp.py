"""`derpp`: DER++ (Buzzega et al. 2020): the logits of replayed samples are matched, and their labels learned.

Two independent draws from the buffer, one for each term, from the second batch on.
"""

from torch.nn import functional as F

from models.method import Method
from utils.config.options import Option, number
from utils.config.registry import MODELS
from utils.step import CURRENT

OPTIONS = (
    Option("alpha", number(0), "weight of the distance to the stored logits", default=0.1),
    Option("beta", number(0), "weight of the cross-entropy on replayed labels", default=0.5),
)


@MODELS.register("derpp", help="dark experience replay, with labels", options=OPTIONS)
class Derpp(Method):
    stores_logits = True
    compiles = True
    draw_names = ("logits", "labels")

    def loss(self, batches, outputs, place):
        losses = {CURRENT: F.cross_entropy(outputs[CURRENT].logits, batches[CURRENT].labels)}
        if "logits" in batches:
            distance = F.mse_loss(outputs["logits"].logits, batches["logits"].logits)
            losses["logits"] = self.config.alpha * distance
        if "labels" in batches:
            labels = F.cross_entropy(outputs["labels"].logits, batches["labels"].labels)
            losses["labels"] = self.config.beta * labels
        return losses
