"""`agem`: A-GEM (Chaudhry et al. 2019) with a reservoir: a step must not increase the loss on stored samples.

g is the gradient of the current batch's loss, the norm's penalty included. g_r is the gradient of a draw from the
buffer, which passes the network separately. If g . g_r < 0, g is replaced by g - (g . g_r / g_r . g_r) g_r (Eq. 11).
All parameters of the network form one vector.
"""

import torch
from torch.nn import functional as F

from models.method import Method
from utils.config.registry import MODELS
from utils.step import CURRENT, Batch, Output, Step, StepIndex, total


def project(gradients: list[torch.Tensor], reference: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients without their component against the reference. Branch-free, so no device sync."""
    dot_product = total((g * r).sum() for g, r in zip(gradients, reference, strict=True))
    squared_length = total((r * r).sum() for r in reference)
    # A reference whose squared length underflows is ignored.
    conflict = (dot_product < 0) & (squared_length >= torch.finfo(squared_length.dtype).tiny)
    factor = torch.where(conflict, dot_product / squared_length, 0.0)
    return [g - factor * r for g, r in zip(gradients, reference, strict=True)]


@MODELS.register("agem", help="averaged gradient episodic memory, with a reservoir")
class Agem(Method):
    draw_names = ("replay",)
    keeps_graph = True
    unused_options = ("replay_forward",)  # the draw always passes the network separately

    def loss(self, batches: dict[str, Batch], outputs: dict[str, Output], index: StepIndex) -> dict[str, torch.Tensor]:
        return {CURRENT: F.cross_entropy(outputs[CURRENT].logits, batches[CURRENT].labels)}

    def adjust_gradients(self, step: Step) -> None:
        if "replay" not in step.batches:
            return
        parameters = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        loss = F.cross_entropy(step.outputs["replay"].logits, step.batches["replay"].labels)
        reference = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        for parameter, gradient in zip(parameters, project(gradients, list(reference)), strict=True):
            parameter.grad = gradient
