"""`gdumb`: GDumb (Prabhu et al. 2020): the stream fills a class-balanced buffer (Alg. 1); a new network is trained
on it at the end of every task.

The learning rate is a tenth of its maximum in the first epoch, then follows a cosine with warm restarts, whose period
starts with one epoch and doubles. Half of the batches are mixed by CutMix (Yun et al. 2019). Momentum, weight decay and
the limit of the gradient's norm are those of the authors' code.
"""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

from models.method import BUFFER_OPTIONS, Method
from utils.config.options import Option, Rule, integer, number
from utils.config.registry import MODELS
from utils.data.buffer import GreedyBalance
from utils.data.random import generator
from utils.data.stream import Stream, StreamSpec
from utils.device import to_device
from utils.errors import RunFailed
from utils.step import CURRENT, Batch, Step, StepIndex

if TYPE_CHECKING:
    from utils.config.resolve import Config

OPTIONS = (
    Option("fitting_epochs", integer(1, 10**6), "Epochs over the buffer at the end of every task.", default=256),
    Option("maxlr", number(0), "Largest learning rate of the fitting.", default=5e-2),
    Option("minlr", number(0), "Smallest learning rate of the fitting.", default=5e-4),
    Option("cutmix_alpha", number(0), "Alpha of CutMix's beta distribution, 0 for none.", default=1.0),
    Option("max_grad_norm", number(0), "Largest norm of a gradient of the fitting, 0 for any.", default=10.0),
)
RULES = (Rule({"optim_mom": 0.9, "optim_wd": 1e-6}),)
OPTIMIZER_OPTIONS = ("lr", "lr_milestones", "lr_factor", "lr_restart", "optimizer", "nesterov")


def fitting_rate(epoch: int, largest: float, smallest: float) -> float:
    """Return the learning rate of an epoch of the fitting."""
    if epoch == 0:
        return 0.1 * largest
    period = 1 << (epoch.bit_length() - 1)  # the epoch in which a period starts is its length
    return smallest + (largest - smallest) * (1 + math.cos(math.pi * (epoch - period) / period)) / 2


def cutmix_box(height: int, width: int, share: float, draw: np.random.Generator) -> tuple[slice, slice]:
    """Return rows and columns of a box around a random pixel with `1 - share` of the area, cut at the image's edge."""
    side = math.sqrt(1 - share)

    def span(size: int) -> slice:
        half, middle = int(size * side) // 2, int(draw.integers(size))
        return slice(max(middle - half, 0), min(middle + half, size))

    return span(height), span(width)


HELP = "greedy sampler and dumb learner: a new network fitted to the buffer"


@MODELS.register("gdumb", help=HELP, options=OPTIONS, rules=RULES, numerics_version=1)
class Gdumb(Method):
    rebuilds_network = True
    unused_options = (*BUFFER_OPTIONS, *OPTIMIZER_OPTIONS)

    @classmethod
    def buffer_policy(cls, config: Config, spec: StreamSpec) -> GreedyBalance:
        return GreedyBalance(config.buffer_size, spec)

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        config = self.config
        return torch.optim.SGD(self.net.parameters(), config.maxlr, config.optim_mom, weight_decay=config.optim_wd)

    def learning_rate(self, task: int, epoch: int) -> None:
        return None

    def step(self, batch: Batch, index: StepIndex) -> Step:
        if index.epoch == 0:  # later epochs have the same samples
            self.remember(batch, {}, index)
        return Step(index, {CURRENT: batch})

    def end_task(self, task: int, stream: Stream) -> None:
        assert self.new_network is not None
        untrained = self.new_network(f"gdumb/{task}")
        for begun in range(task + 1):
            untrained.begin_task(self.classes_up_to(begun))
        self.net.load_state_dict(untrained.state_dict())
        self.optimizer.state.clear()  # the momentum of the last fitting
        self.net.train()
        for epoch in range(self.config.fitting_epochs):
            for group in self.optimizer.param_groups:
                group["lr"] = fitting_rate(epoch, self.config.maxlr, self.config.minlr)
            self._fit_epoch(task, epoch)

    def _fit_epoch(self, task: int, epoch: int) -> None:
        assert self.buffer is not None
        size, seed = self.config.batch_size, self.config.seed
        slots = generator(seed, f"fit/{task}", epoch).permutation(len(self.buffer))
        losses = []
        for turn, start in enumerate(range(0, len(slots), size)):
            batch = self.buffer.gather(slots[start : start + size])
            inputs = self.augment(batch.images, f"fit/{task}/{epoch}", turn)
            draw = generator(seed, f"cutmix/{task}", epoch, turn)
            compute_loss = partial(self._fitting_loss, inputs, batch.labels, draw)
            if (loss := self.runner.skip_unnormalizable_batch(len(batch), compute_loss)) is not None:
                self.optimizer.zero_grad()
                loss.backward()
                if self.config.max_grad_norm:
                    torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.config.max_grad_norm)
                self.optimizer.step()
                losses.append(loss.detach())
        if not losses:
            raise RunFailed("the buffer holds a single image, which this norm cannot normalize; raise --buffer_size")
        if not torch.stack(losses).isfinite().all():
            raise RunFailed(f"the fitting of task {task + 1} diverged in epoch {epoch + 1}; a smaller --maxlr may help")

    def _fitting_loss(self, inputs: torch.Tensor, labels: torch.Tensor, draw: np.random.Generator) -> torch.Tensor:
        """Return the cross-entropy; for half of the batches, that of mixed images with both labels by area."""
        alpha = self.config.cutmix_alpha
        if not alpha or draw.random() >= 0.5:
            return F.cross_entropy(self.net(inputs), labels)
        rows, columns = cutmix_box(inputs.shape[2], inputs.shape[3], float(draw.beta(alpha, alpha)), draw)
        partner = to_device(draw.permutation(len(inputs)), inputs.device)
        mixed = inputs.clone()
        mixed[:, :, rows, columns] = inputs[partner][:, :, rows, columns]
        taken = (rows.stop - rows.start) * (columns.stop - columns.start) / (inputs.shape[2] * inputs.shape[3])
        logits = self.net(mixed)
        return (1 - taken) * F.cross_entropy(logits, labels) + taken * F.cross_entropy(logits, labels[partner])
