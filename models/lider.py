"""LiDER (Bonicelli et al. 2022): replay whose network keeps a small Lipschitz constant. On top of a base method.

The coefficient of two consecutive feature maps estimates the largest singular value of their correlation. Two
terms, each on its own draw from the buffer: the mean coefficient, and its distance to a target, which is the mean
coefficient of the untrained network on the first task.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from models.method import Method
from utils.config.options import Option, choice, number
from utils.data.random import generator
from utils.device import to_device

EPS = torch.finfo(torch.float32).eps
POWER_ITERATIONS = 10
LIPSCHITZ_DRAWS = ("lip_mean", "lip_target")

TARGETS = Option(
    "lip_targets",
    choice("constant", "learned"),
    "LiDER's targets: constant as in its released code, or learned as in its paper",
    default="constant",
)


def lider_options(alpha_lip: float, beta_lip: float) -> tuple[Option, ...]:
    return (
        Option("alpha_lip", number(0), "weight of the mean Lipschitz coefficient", default=alpha_lip),
        Option("beta_lip", number(0), "weight of the distance to the targets", default=beta_lip),
        TARGETS,
    )


@cache
def pooling_matrix(size: int, bins: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """(bins, size): the windows of adaptive average pooling as a product, whose gradient is deterministic on CUDA."""
    start = np.arange(bins) * size // bins
    stop = -(-(np.arange(bins) + 1) * size // bins)
    inside = (np.arange(size) >= start[:, None]) & (np.arange(size) < stop[:, None])
    return torch.tensor(inside / inside.sum(1, keepdims=True), dtype=dtype, device=device)


def unit_channels(a: torch.Tensor) -> torch.Tensor:
    a = a.double()
    return a / (a.norm(dim=1, keepdim=True) + EPS)


def coefficients(a: torch.Tensor, b: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """One coefficient per sample for two feature maps; `start` (N, channels of a) starts the power iteration."""
    if b.shape[1] != a.shape[1]:
        b = torch.einsum("dc,nchw->ndhw", pooling_matrix(b.shape[1], a.shape[1], b.dtype, b.device), b)
    a, b = unit_channels(a), unit_channels(b)
    if a.shape[2] > b.shape[2]:
        rows, columns = (pooling_matrix(a.shape[i], b.shape[i], a.dtype, a.device) for i in (2, 3))
        a = torch.einsum("hi,ncij,wj->nchw", rows, a, columns)
    matrix = a.flatten(2) @ b.flatten(2).mT / (b.shape[2] * b.shape[3])
    return largest_singular_value(matrix, start)


def largest_singular_value(matrix: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    square = matrix @ matrix.mT
    with torch.no_grad():
        v = start.unsqueeze(2)
        for _ in range(POWER_ITERATIONS - 1):
            v = square @ v
            v = v / (v.norm(dim=1, keepdim=True) + EPS)
    # The tenth iteration, which alone has a gradient; its length is about the square of the singular value.
    v = square @ v
    length = v.norm(dim=(1, 2)) + EPS
    v = v / length[:, None, None]
    return (length / (v.norm(dim=(1, 2)) + EPS)).sqrt()


class Lider(Method):
    """Mixed into a base method, in front of it: `class X(Lider, Base)`, with the base's draws and `LIPSCHITZ_DRAWS`."""

    needs_features = True
    compiles = False  # its power iterations start from draws of the host

    def __init__(self, net, *more):
        super().__init__(net, *more)
        targets = torch.zeros(net.n_feature_maps, dtype=torch.float64, device=next(net.parameters()).device)
        self.targets = nn.Parameter(targets, requires_grad=self.config.lip_targets == "learned")

    def begin_task(self, task, stream):
        super().begin_task(task, stream)
        if task == 0:
            self.targets.data.copy_(self._untrained_coefficients(stream))

    def parameters(self):
        return super().parameters() + ([self.targets] if self.targets.requires_grad else [])

    def due_draws(self, place):
        """Its own also where the base method replays nothing."""
        return super().due_draws(place) or (LIPSCHITZ_DRAWS if len(self.buffer) else ())

    def replayed(self, batches):
        return super().replayed({name: batch for name, batch in batches.items() if name not in LIPSCHITZ_DRAWS})

    def loss(self, batches, outputs, place):
        losses = super().loss(batches, outputs, place)
        found = {
            name: self._coefficients(batches[name].inputs, outputs[name].features, name, *place.address)
            for name in LIPSCHITZ_DRAWS
            if name in batches
        }
        if "lip_mean" in found:
            losses["lip_mean"] = self.config.alpha_lip * found["lip_mean"].mean()
        if "lip_target" in found:
            distance = (found["lip_target"] - F.relu(self.targets)).abs().mean()
            losses["lip_target"] = self.config.beta_lip * distance
        return losses

    def _coefficients(self, inputs, features, name: str, *place: int) -> torch.Tensor:
        """(samples, pairs) of the consecutive maps from the input to the last stage."""
        pairs = list(pairwise([inputs, *features]))
        starts = self._starts([a.shape[:2] for a, _ in pairs], name, place, inputs.device)
        return torch.stack([coefficients(a, b, start) for (a, b), start in zip(pairs, starts, strict=True)], dim=1)

    def _starts(self, shapes: list[tuple[int, int]], name: str, place: tuple[int, ...], device) -> list[torch.Tensor]:
        """Where the power iterations of every pair start, in one copy to the device."""
        drawn = [
            generator(self.config.seed, f"power/{name}/{index}", *place).random(shape)
            for index, shape in enumerate(shapes)
        ]
        sent = to_device(np.concatenate([start.ravel() for start in drawn]), device)
        parts = sent.split([start.size for start in drawn])
        return [part.view(start.shape) for part, start in zip(parts, drawn, strict=True)]

    @torch.no_grad()
    def _untrained_coefficients(self, stream) -> torch.Tensor:
        """Mean over the first task's training data, in eval mode."""
        total = count = 0
        self.net.eval()
        for index, batch in enumerate(stream.in_order(0, 64)):
            inputs = self.augment(batch.images, "lip_start", index)
            features = self.net.output(inputs).features
            total = total + self._coefficients(inputs, features, "start", index).sum(0)
            count += len(batch)
        return total / count

    def state_dict(self):
        return super().state_dict() | {"targets": self.targets.detach()}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.targets.data.copy_(state["targets"])
