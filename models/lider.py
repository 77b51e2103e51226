"""LiDER (Bonicelli et al. 2022): replay whose network keeps a small Lipschitz constant. On top of a base method.

The coefficient of two consecutive feature maps estimates the largest singular value of their correlation. Two
terms, each on its own draw from the buffer: the mean coefficient, and its distance to a target, which is the mean
coefficient of the untrained network on the first task.
"""

from __future__ import annotations

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


def pooling_matrix(size: int, bins: int, like: torch.Tensor) -> torch.Tensor:
    """(bins, size): the windows of adaptive average pooling as a product, whose gradient is deterministic on CUDA."""
    start = np.arange(bins) * size // bins
    stop = -(-(np.arange(bins) + 1) * size // bins)
    inside = (np.arange(size) >= start[:, None]) & (np.arange(size) < stop[:, None])
    return to_device(inside / inside.sum(1, keepdims=True), like)


def unit_channels(a: torch.Tensor) -> torch.Tensor:
    a = a.double()
    return a / (a.norm(dim=1, keepdim=True) + EPS)


def coefficients(a: torch.Tensor, b: torch.Tensor, start: np.ndarray) -> torch.Tensor:
    """One coefficient per sample for two feature maps; `start` (N, channels of a) starts the power iteration."""
    if b.shape[1] != a.shape[1]:
        b = torch.einsum("dc,nchw->ndhw", pooling_matrix(b.shape[1], a.shape[1], b), b)
    a, b = unit_channels(a), unit_channels(b)
    if a.shape[2] > b.shape[2]:
        rows, columns = (pooling_matrix(a.shape[i], b.shape[i], a) for i in (2, 3))
        a = torch.einsum("hi,ncij,wj->nchw", rows, a, columns)
    matrix = a.flatten(2) @ b.flatten(2).mT / (b.shape[2] * b.shape[3])
    return largest_singular_value(matrix, start)


def largest_singular_value(matrix: torch.Tensor, start: np.ndarray) -> torch.Tensor:
    square = matrix @ matrix.mT
    with torch.no_grad():
        v = to_device(start, square).unsqueeze(2)
        for _ in range(POWER_ITERATIONS - 1):
            v = square @ v
            v = v / (v.norm(dim=1, keepdim=True) + EPS)
    return ((square @ v).norm(dim=(1, 2)) / (v.norm(dim=(1, 2)) + EPS)).sqrt()


class Lider(Method):
    """Mixed into a base method, in front of it: `class X(Lider, Base)`."""

    needs_features = True

    def prepare(self, stream):
        super().prepare(stream)
        like = next(self.net.parameters())
        targets = torch.tensor(self._untrained_coefficients(stream), dtype=torch.float64, device=like.device)
        self.targets = nn.Parameter(targets, requires_grad=self.config.lip_targets == "learned")

    def parameters(self):
        return super().parameters() + ([self.targets] if self.targets.requires_grad else [])

    def draws(self, place):
        own = {name: self.draw(name, place) for name in LIPSCHITZ_DRAWS} if len(self.buffer) else {}
        return super().draws(place) | own

    def replayed(self, parts):
        return super().replayed({name: part for name, part in parts.items() if name not in LIPSCHITZ_DRAWS})

    def loss(self, parts, outputs, place):
        loss = super().loss(parts, outputs, place)
        if LIPSCHITZ_DRAWS[0] not in parts:
            return loss
        size, target = (
            self._coefficients(parts[name].inputs, outputs[name].features, name, place.step) for name in LIPSCHITZ_DRAWS
        )
        distance = (target - F.relu(self.targets)).abs().mean()
        return loss + self.config.alpha_lip * size.mean() + self.config.beta_lip * distance

    def _coefficients(self, inputs, features, name: str, step: int) -> torch.Tensor:
        """(samples, pairs) of the consecutive maps from the input to the last stage."""
        columns = []
        for index, (a, b) in enumerate(pairwise([inputs, *features])):
            draw = generator(self.config.seed, f"power/{name}/{index}", step)
            columns.append(coefficients(a, b, draw.random((a.shape[0], a.shape[1]))))
        return torch.stack(columns, dim=1)

    @torch.no_grad()
    def _untrained_coefficients(self, stream) -> list[float]:
        """Mean over the first task's training data, in eval mode."""
        task, total, chunk = stream.train(0), 0, 64
        self.net.eval()
        for index, first in enumerate(range(0, len(task), chunk)):
            part = task.part(first, min(first + chunk, len(task)))
            inputs = self.augment(part.images, "lip_start", index)
            features = self.net.forward_features(inputs)[1]
            total = total + self._coefficients(inputs, features, "start", index).sum(0)
        return (total / len(task)).tolist()

    def state_dict(self):
        return super().state_dict() | {"targets": self.targets.detach()}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        like = next(self.net.parameters())
        learned = self.config.lip_targets == "learned"
        self.targets = nn.Parameter(state["targets"].to(like.device), requires_grad=learned)
