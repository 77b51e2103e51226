"""`er`: Experience Replay (Riemer et al. 2019): one cross-entropy over the current and the replayed samples."""

import torch
from torch.nn import functional as F

from models.method import Method
from utils.config.registry import MODELS


@MODELS.register("er", help="experience replay")
class Er(Method):
    always_joint_forward = True

    def draws(self, place):
        return {"replay": self.draw("replay", place)} if len(self.buffer) else {}

    def loss(self, parts, outputs, place):
        logits = torch.cat([outputs[name].logits for name in parts])
        return F.cross_entropy(logits, torch.cat([part.labels for part in parts.values()]))
