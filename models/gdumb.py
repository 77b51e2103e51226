"""`gdumb`: GDumb (Prabhu et al. 2020): the stream only fills a class-balanced buffer; at the end of every task a new
network is trained on it from scratch.

The learning rate starts at a tenth of its maximum for one epoch, then follows a cosine with warm restarts, whose period
is one epoch at first and doubles. Half of the batches are mixed by CutMix (Yun et al. 2019).
"""

from __future__ import annotations

import math
from functools import cached_property, partial

import numpy as np
import torch
from torch.nn import functional as F

from models.method import Method
from utils.config.options import Option, integer, number
from utils.config.registry import MODELS
from utils.data.buffer import GreedyBalance
from utils.data.random import generator
from utils.data.stream import picked
from utils.device import to_device
from utils.errors import RunFailed
from utils.step import CURRENT, Step

OPTIONS = (
    Option("fitting_epochs", integer(1, 10**6), "epochs over the buffer at the end of every task", default=256),
    Option("maxlr", number(0), "largest learning rate of the fitting", default=5e-2),
    Option("minlr", number(0), "smallest learning rate of the fitting", default=5e-4),
    Option("cutmix_alpha", number(0), "alpha of CutMix's beta distribution, 0 for none", default=1.0),
)


def fitting_rate(epoch: int, largest: float, smallest: float) -> float:
    if epoch == 0:
        return 0.1 * largest
    place, period = epoch - 1, 1
    while place >= period:
        place, period = place - period, 2 * period
    return smallest + (largest - smallest) * (1 + math.cos(math.pi * place / period)) / 2


def cutmix_box(height: int, width: int, share: float, draw: np.random.Generator) -> tuple[slice, slice]:
    """Rows and columns of a box at a random place whose area is `1 - share` of the image, as far as it lies inside."""
    side = math.sqrt(1 - share)
    spans = []
    for size in (height, width):
        half, middle = int(size * side) // 2, int(draw.integers(size))
        spans.append(slice(max(middle - half, 0), min(middle + half, size)))
    return tuple(spans)


@MODELS.register("gdumb", help="greedy sampler and dumb learner: a new network fitted to the buffer", options=OPTIONS)
class Gdumb(Method):
    rebuilds_network = True
    unused_options = (
        "minibatch_size", "current_share", "balance_replay", "replay_iters", "buffer_mode", "ring_quota",
        "replay_forward",
        "lr", "lr_milestones", "lr_factor", "lr_restart", "optimizer", "optim_mom", "nesterov",
    )  # fmt: skip

    @classmethod
    def buffer_policy(cls, config, spec):
        return GreedyBalance(config.buffer_size, spec.n_classes)

    @cached_property
    def optimizer(self):
        return torch.optim.SGD(self.net.parameters(), lr=self.config.maxlr, weight_decay=self.config.optim_wd)

    def learning_rate(self, task, epoch):
        return None  # the stream is not learned from

    def step(self, batch, place):
        if place.epoch == 0:  # further epochs bring the same samples
            self.remember(batch, {}, place)
        return Step(place, {CURRENT: batch})

    def end_task(self, task, stream):
        fresh = self.new_network(f"gdumb/{task}")
        for begun in range(task + 1):
            fresh.begin_task(self.classes_up_to(begun))
        self.net.load_state_dict(fresh.state_dict())
        self.net.train()
        for epoch in range(self.config.fitting_epochs):
            for group in self.optimizer.param_groups:
                group["lr"] = fitting_rate(epoch, self.config.maxlr, self.config.minlr)
            self._fit_epoch(task, epoch)

    def _fit_epoch(self, task: int, epoch: int) -> None:
        data, size, seed = self.buffer.everything(), self.config.batch_size, self.config.seed
        order = generator(seed, f"fit/{task}", epoch).permutation(len(data))
        order_on_device = to_device(order, data.labels.device)
        losses = []
        for turn, start in enumerate(range(0, len(data), size)):
            chosen = slice(start, start + size)
            batch = picked(data, order[chosen], order_on_device[chosen])
            inputs = self.augment(batch.images, f"fit/{task}/{epoch}", turn)
            draw = generator(seed, f"cutmix/{task}", epoch, turn)
            loss = self.unless_single(len(batch), partial(self._fitting_loss, inputs, batch.labels, draw))
            if loss is None:
                continue
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.detach())
        if not losses:
            raise RunFailed("the buffer holds a single image, which this norm cannot normalize: raise --buffer_size")
        if not torch.stack(losses).isfinite().all():
            raise RunFailed(f"the fitting of task {task + 1} diverged in epoch {epoch + 1}; a smaller --maxlr may help")

    def _fitting_loss(self, inputs: torch.Tensor, labels: torch.Tensor, draw: np.random.Generator) -> torch.Tensor:
        alpha = self.config.cutmix_alpha
        if not alpha or draw.random() >= 0.5:
            return F.cross_entropy(self.net(inputs), labels)
        rows, columns = cutmix_box(*inputs.shape[2:], float(draw.beta(alpha, alpha)), draw)
        partner = to_device(draw.permutation(len(inputs)), inputs.device)
        mixed = inputs.clone()
        mixed[:, :, rows, columns] = inputs[partner][:, :, rows, columns]
        taken = (rows.stop - rows.start) * (columns.stop - columns.start) / (inputs.shape[2] * inputs.shape[3])
        logits = self.net(mixed)
        return (1 - taken) * F.cross_entropy(logits, labels) + taken * F.cross_entropy(logits, labels[partner])
