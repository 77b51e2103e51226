"""`agem`: A-GEM (Chaudhry et al. 2019) with a reservoir: a step must not increase the loss on what was stored.

g is the gradient of the current batch's loss, the norms' penalty included, and g_r that of a draw from the buffer, in
a forward of its own. Where they disagree, g loses its part along g_r: g - (g . g_r / g_r . g_r) g_r. All parameters of
the network count as one vector.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from models.method import Method
from utils.config.registry import MODELS
from utils.step import CURRENT


def projected(gradients: list[torch.Tensor], reference: list[torch.Tensor]) -> list[torch.Tensor]:
    """Decided by a factor that is 0 where nothing is to be taken away: the host need not know."""
    along = sum((g * r).sum() for g, r in zip(gradients, reference, strict=True))
    length = sum((r * r).sum() for r in reference)
    # A reference that is too small for its own square is none.
    disagree = (along < 0) & (length >= torch.finfo(length.dtype).tiny)
    factor = torch.where(disagree, along / length, 0.0)
    return [g - factor * r for g, r in zip(gradients, reference, strict=True)]


@MODELS.register("agem", help="averaged gradient episodic memory, with a reservoir")
class Agem(Method):
    draw_names = ("replay",)
    keeps_graph = True
    unused_options = ("replay_forward",)  # the reference always has a forward of its own

    def loss(self, batches, outputs, place):
        return {CURRENT: F.cross_entropy(outputs[CURRENT].logits, batches[CURRENT].labels)}

    def adjust_gradients(self, step):
        if "replay" not in step.batches:
            return
        learned = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        loss = F.cross_entropy(step.outputs["replay"].logits, step.batches["replay"].labels)
        reference = torch.autograd.grad(loss, learned, allow_unused=True, materialize_grads=True)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in learned]
        for parameter, gradient in zip(learned, projected(gradients, list(reference)), strict=True):
            parameter.grad = gradient
