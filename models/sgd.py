"""`sgd`: fine-tuning without replay, the lower bound (FT in the paper).

`joint`: all classes in one task, for the same number of epochs; the upper bound (JT in the paper).
"""

import torch
from torch.nn import functional as F

from models.method import Method
from utils.config.registry import MODELS
from utils.step import CURRENT, Batch, Output, StepIndex


@MODELS.register("sgd", help="fine-tuning without replay (FT)")
class Sgd(Method):
    uses_buffer = False
    compiles = True

    def loss(self, batches: dict[str, Batch], outputs: dict[str, Output], index: StepIndex) -> dict[str, torch.Tensor]:
        return {"labels": F.cross_entropy(outputs[CURRENT].logits, batches[CURRENT].labels)}


@MODELS.register("joint", help="all tasks at once (JT)")
class Joint(Sgd):
    joint_training = True
    needs_boundaries = True
    unused_options = ("classifier",)  # all classes are seen
