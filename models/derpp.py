"""`derpp`: DER++ (Buzzega et al. 2020): the logits of replayed samples are matched, and their labels learned.

Two independent draws from the buffer, one for each term, from the second batch on.
"""

from torch.nn import functional as F

from models.method import CURRENT, Method
from utils.config.options import Option, number
from utils.config.registry import MODELS

OPTIONS = (
    Option("alpha", number(0), "weight of the distance to the stored logits", default=0.1),
    Option("beta", number(0), "weight of the cross-entropy on replayed labels", default=0.5),
)


@MODELS.register("derpp", help="dark experience replay, with labels", options=OPTIONS)
class Derpp(Method):
    stores_logits = True

    def draws(self, place):
        return {name: self.draw(name, place) for name in ("logits", "labels")} if len(self.buffer) else {}

    def loss(self, parts, outputs, place):
        loss = F.cross_entropy(outputs[CURRENT].logits, parts[CURRENT].labels)
        if "logits" in parts:
            distance = F.mse_loss(outputs["logits"].logits, parts["logits"].logits)
            labels = F.cross_entropy(outputs["labels"].logits, parts["labels"].labels)
            loss = loss + self.config.alpha * distance + self.config.beta * labels
        return loss
