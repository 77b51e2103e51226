"""`der`: Dark Experience Replay (Buzzega et al. 2020): the logits of replayed samples are matched, their labels not."""

from torch.nn import functional as F

from models.method import Method
from utils.config.options import Option, number
from utils.config.registry import MODELS
from utils.step import CURRENT

ALPHA = Option("alpha", number(0), "weight of the distance to the stored logits", default=0.3)


@MODELS.register("der", help="dark experience replay, logits only", options=(ALPHA,))
class Der(Method):
    stores_logits = True
    compiles = True
    draw_names = ("logits",)

    def loss(self, batches, outputs, place):
        losses = {CURRENT: F.cross_entropy(outputs[CURRENT].logits, batches[CURRENT].labels)}
        if "logits" in batches:
            distance = F.mse_loss(outputs["logits"].logits, batches["logits"].logits)
            losses["logits"] = self.config.alpha * distance
        return losses
