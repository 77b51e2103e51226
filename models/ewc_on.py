"""`ewc_on`: online Elastic Weight Consolidation (Schwarz et al. 2018): parameters that past tasks need stay.

The penalty is e_lambda sum F (theta - theta*)^2. At the end of a task F becomes gamma F + F_t, where F_t is the mean
over the task's samples of p(y|x) (grad log p(y|x))^2 for the true label y, in eval mode and without augmentation. The
expectation over labels of the Fisher information is replaced by this one term, as in mammoth, which computes it in
training mode on augmented images (docs/from_mammoth.md).
"""

from typing import Any

import torch
from torch.nn import functional as F

from models.method import Method
from utils.config.options import Option, number
from utils.config.registry import MODELS
from utils.data.stream import Stream
from utils.step import CURRENT, Batch, Output, StepIndex, total

OPTIONS = (
    Option("e_lambda", number(0), "Weight of the penalty on moving away from past parameters.", default=10.0),
    Option("gamma", number(0), "Factor of the former importance at the end of a task.", default=1.0),
)


@MODELS.register("ewc_on", help="online elastic weight consolidation", options=OPTIONS)
class EwcOnline(Method):
    uses_buffer = False

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        # By parameter name. Parameters that come with a later task, such as its psi, join at the end of that task.
        self.importance: dict[str, torch.Tensor] = {}
        self.anchor: dict[str, torch.Tensor] = {}

    def loss(self, batches: dict[str, Batch], outputs: dict[str, Output], index: StepIndex) -> dict[str, torch.Tensor]:
        terms = {CURRENT: F.cross_entropy(outputs[CURRENT].logits, batches[CURRENT].labels)}
        if self.anchor:
            parameters = dict(self.net.named_parameters())
            distances = {name: (parameters[name] - before).square() for name, before in self.anchor.items()}
            terms["ewc"] = self.config.e_lambda * total((self.importance[n] * d).sum() for n, d in distances.items())
        return terms

    def end_task(self, task: int, stream: Stream) -> None:
        parameters = {name: parameter for name, parameter in self.net.named_parameters() if parameter.requires_grad}
        sums, count = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}, 0
        self.net.eval()
        for batch in stream.in_order(task, 1):  # the mean of squares needs the gradient of every sample
            logits = self.net(self.augment.normalize(batch.images))
            log_p = F.log_softmax(logits, 1).gather(1, batch.labels[:, None])
            gradients = torch.autograd.grad(log_p.sum(), list(parameters.values()), allow_unused=True)
            probability = log_p.detach().exp().squeeze()
            for name, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    sums[name] += probability * gradient.square()
            count += 1
        past = self.importance
        self.importance = {name: value / count for name, value in sums.items()}
        for name in past.keys() & self.importance.keys():
            self.importance[name] = self.importance[name] + self.config.gamma * past[name]
        self.anchor = {name: parameter.detach().clone() for name, parameter in parameters.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"importance": self.importance, "anchor": self.anchor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.augment.scale.device
        self.importance = {name: value.to(device) for name, value in state["importance"].items()}
        self.anchor = {name: value.to(device) for name, value in state["anchor"].items()}
