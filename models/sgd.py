"""`sgd`: fine-tuning, the lower bound (FT in the paper)."""

from torch.nn import functional as F

from models.method import Method
from utils.config.registry import MODELS
from utils.step import CURRENT


@MODELS.register("sgd", help="fine-tuning without replay (FT)")
class Sgd(Method):
    uses_buffer = False
    compiles = True

    def loss(self, batches, outputs, place):
        return {"labels": F.cross_entropy(outputs[CURRENT].logits, batches[CURRENT].labels)}
