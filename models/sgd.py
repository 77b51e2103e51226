"""`sgd`: fine-tuning, the lower bound (FT in the paper)."""

from torch.nn import functional as F

from models.method import CURRENT, Method
from utils.config.registry import MODELS


@MODELS.register("sgd", help="fine-tuning without replay (FT)")
class Sgd(Method):
    uses_buffer = False

    def loss(self, parts, outputs, place):
        return F.cross_entropy(outputs[CURRENT].logits, parts[CURRENT].labels)
