"""`er`: Experience Replay (Riemer et al. 2019): one cross-entropy over the current and the replayed samples."""

import torch
from torch.nn import functional as F

from models.method import Method
from utils.config.registry import MODELS
from utils.step import Batch, Output, StepIndex


@MODELS.register("er", help="experience replay")
class Er(Method):
    always_joint_forward = True
    compiles = True
    draw_names = ("replay",)

    def loss(self, batches: dict[str, Batch], outputs: dict[str, Output], index: StepIndex) -> dict[str, torch.Tensor]:
        logits = torch.cat([outputs[name].logits for name in batches])
        labels = torch.cat([batch.labels for batch in batches.values()])
        return {"labels": F.cross_entropy(logits, labels)}
