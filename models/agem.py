"""`agem`: A-GEM (Chaudhry et al. 2019): a step must not increase the loss on stored samples.

`agem_r`: the same with a buffer that every batch of the stream is offered to, by default a reservoir.

g is the gradient of the current batch's loss, the norm's penalty included. g_r is the gradient of a draw from the
buffer, which passes the network separately. If g . g_r < 0, g is replaced by g - (g . g_r / g_r . g_r) g_r (Eq. 11).
All parameters of the network form one vector. At the end of a task, `agem` stores samples of it drawn at random, the
same number of every task; before, it stores nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

from models.method import Method
from utils.config.registry import MODELS
from utils.data.buffer import Ring
from utils.data.random import generator
from utils.data.stream import Stream, StreamSpec, index_batch
from utils.step import CURRENT, Batch, Output, Step, StepIndex, total

if TYPE_CHECKING:
    from utils.config.resolve import Config

CHUNK = 256  # images that are read at once


def project(gradients: list[torch.Tensor], reference: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients without their component against the reference. Branch-free, so no device sync."""
    dot_product = total((g * r).sum() for g, r in zip(gradients, reference, strict=True))
    squared_length = total((r * r).sum() for r in reference)
    # A reference whose squared length underflows is ignored.
    conflict = (dot_product < 0) & (squared_length >= torch.finfo(squared_length.dtype).tiny)
    factor = torch.where(conflict, dot_product / squared_length, 0.0)
    return [g - factor * r for g, r in zip(gradients, reference, strict=True)]


@MODELS.register("agem_r", help="averaged gradient episodic memory, with a reservoir")
class AgemReservoir(Method):
    draw_names = ("replay",)
    keeps_graph = True
    unused_options: tuple[str, ...] = ("replay_forward",)  # the draw always passes the network separately

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


@MODELS.register("agem", help="averaged gradient episodic memory, with samples of past tasks", numerics_version=1)
class Agem(AgemReservoir):
    unused_options = (*AgemReservoir.unused_options, "buffer_mode")

    @classmethod
    def buffer_policy(cls, config: Config, spec: StreamSpec) -> Ring:
        return Ring(config.buffer_size, spec, ring_quota="task")

    def remember(self, batch: Batch, outputs: dict[str, Output], index: StepIndex) -> None:
        """Store nothing: samples are chosen at the end of a task."""

    def end_task(self, task: int, stream: Stream) -> None:
        assert self.buffer is not None
        size = stream.train_sizes[task]
        count = min(self.buffer.policy.capacity // self.spec.n_tasks, size)
        chosen = np.sort(generator(self.config.seed, "agem", task).choice(size, count, replace=False))
        for number, batch in enumerate(stream.in_order(task, CHUNK)):
            index = chosen[chosen // CHUNK == number] % CHUNK
            self.buffer.add(index_batch(batch, index))
