"""`ewc_on`: online Elastic Weight Consolidation (Schwarz et al. 2018): what mattered to past tasks is held in place.

The penalty is e_lambda sum F (theta - theta*)^2. At the end of a task F becomes gamma F + F_t, where F_t is the mean
over the task's samples of p(y|x) (grad log p(y|x))^2 for the true label, in eval mode and without augmentation.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from models.method import Method
from utils.config.options import Option, number
from utils.config.registry import MODELS
from utils.step import CURRENT, total

OPTIONS = (
    Option("e_lambda", number(0), "weight of the penalty on moving away from past parameters", default=10.0),
    Option("gamma", number(0), "how much of the former importance is kept at the end of a task", default=1.0),
)


@MODELS.register("ewc_on", help="online elastic weight consolidation", options=OPTIONS)
class EwcOnline(Method):
    uses_buffer = False

    def __init__(self, *arguments):
        super().__init__(*arguments)
        # By the parameters' names; one that came later, such as a new task's psi, is not held yet.
        self.importance: dict[str, torch.Tensor] = {}
        self.anchor: dict[str, torch.Tensor] = {}

    def loss(self, batches, outputs, place):
        losses = {CURRENT: F.cross_entropy(outputs[CURRENT].logits, batches[CURRENT].labels)}
        if self.anchor:
            parameters = dict(self.net.named_parameters())
            moved = (
                (self.importance[name] * (parameters[name] - before).square()).sum()
                for name, before in self.anchor.items()
            )
            losses["ewc"] = self.config.e_lambda * total(moved)
        return losses

    def end_task(self, task, stream):
        found = self._importance_of(task, stream)
        kept = self.config.gamma
        self.importance = {
            name: new + kept * self.importance[name] if name in self.importance else new for name, new in found.items()
        }
        self.anchor = {name: parameter.detach().clone() for name, parameter in self._learned().items()}

    def _learned(self) -> dict[str, torch.nn.Parameter]:
        return {name: parameter for name, parameter in self.net.named_parameters() if parameter.requires_grad}

    def _importance_of(self, task, stream) -> dict[str, torch.Tensor]:
        """One sample after the other: the square of a sum of gradients would be something else."""
        learned = self._learned()
        sums, count = {name: torch.zeros_like(parameter) for name, parameter in learned.items()}, 0
        self.net.eval()
        for batch in stream.in_order(task, 1):
            log_p = F.log_softmax(self.net(self.augment.normalize(batch.images)), 1).gather(1, batch.labels[:, None])
            gradients = torch.autograd.grad(log_p.sum(), list(learned.values()), allow_unused=True)
            probability = log_p.detach().exp().squeeze()
            for name, gradient in zip(learned, gradients, strict=True):
                if gradient is not None:
                    sums[name] += probability * gradient.square()
            count += 1
        return {name: value / count for name, value in sums.items()}

    def state_dict(self):
        return {"importance": self.importance, "anchor": self.anchor}

    def load_state_dict(self, state):
        device = self.augment.scale.device
        for name in ("importance", "anchor"):
            setattr(self, name, {parameter: value.to(device) for parameter, value in state[name].items()})
