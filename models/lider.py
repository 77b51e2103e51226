"""LiDER (Bonicelli et al. 2022): keep the Lipschitz constant of the network small, on top of a base method.

The coefficient of two consecutive feature maps estimates the largest singular value of their correlation. The loss has
two more terms, each on its own draw from the buffer: the mean coefficient, and its distance to a target. The target is
the mean coefficient of the untrained network on the first task: constant as in the released code, or learned from there
as in the paper (`--lip_targets`). `er_ace_lider` is most likely the LiDER column of AdaB²N's paper.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from models import derpp
from models.er_ace import ErAce
from models.method import Method
from utils.config.options import Option, choice, number
from utils.config.registry import MODELS
from utils.data.random import generator
from utils.data.stream import Stream
from utils.device import to_device
from utils.step import Batch, Output, StepIndex

EPS = torch.finfo(torch.float32).eps
POWER_ITERATIONS = 10
LIPSCHITZ_DRAWS = ("lip_mean", "lip_target")


def lider_options(alpha_lip: float, beta_lip: float) -> tuple[Option, ...]:
    targets = "LiDER's targets: constant as in its released code, or learned as in its paper."
    return (
        Option("alpha_lip", number(0), "Weight of the mean Lipschitz coefficient.", default=alpha_lip),
        Option("beta_lip", number(0), "Weight of the distance to the targets.", default=beta_lip),
        Option("lip_targets", choice("constant", "learned"), targets, default="constant"),
    )


@cache
def pooling_matrix(size: int, bins: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return adaptive average pooling as a matrix (bins, size), whose gradient is deterministic on CUDA."""
    start = np.arange(bins) * size // bins
    stop = -(-(np.arange(bins) + 1) * size // bins)
    inside = (np.arange(size) >= start[:, None]) & (np.arange(size) < stop[:, None])
    return torch.tensor(inside / inside.sum(1, keepdims=True), dtype=dtype, device=device)


def coefficients(a: torch.Tensor, b: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Return a coefficient per sample for two feature maps; `start` (N, channels of a) starts the power iteration."""
    if b.shape[1] != a.shape[1]:
        b = torch.einsum("dc,nchw->ndhw", pooling_matrix(b.shape[1], a.shape[1], b.dtype, b.device), b)
    a, b = (x / (x.norm(dim=1, keepdim=True) + EPS) for x in (a.double(), b.double()))
    if a.shape[2] > b.shape[2]:
        rows, columns = (pooling_matrix(a.shape[i], b.shape[i], a.dtype, a.device) for i in (2, 3))
        a = torch.einsum("hi,ncij,wj->nchw", rows, a, columns)
    correlation = a.flatten(2) @ b.flatten(2).mT / (b.shape[2] * b.shape[3])
    square = correlation @ correlation.mT
    with torch.no_grad():
        v = start.unsqueeze(2)
        for _ in range(POWER_ITERATIONS - 1):
            v = square @ v
            v = v / (v.norm(dim=1, keepdim=True) + EPS)
    # Only the tenth iteration has a gradient; the length of v is about the square of the singular value.
    v = square @ v
    length = v.norm(dim=(1, 2)) + EPS
    v = v / length[:, None, None]
    return (length / (v.norm(dim=(1, 2)) + EPS)).sqrt()


class Lider(Method):
    """Mix-in before a base method: `class X(Lider, Base)`, with the draws of the base and `LIPSCHITZ_DRAWS`."""

    needs_features = True
    compiles = False  # the power iterations start from random vectors of the host

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        targets = torch.zeros(self.net.n_feature_maps, dtype=torch.float64, device=self.augment.scale.device)
        self.targets = nn.Parameter(targets, requires_grad=self.config.lip_targets == "learned")

    @torch.no_grad()
    def begin_task(self, task: int, stream: Stream) -> None:
        """Set the targets, before the first task, to the mean over its training data in eval mode."""
        super().begin_task(task, stream)
        if task > 0:
            return
        sums, count = torch.zeros_like(self.targets), 0
        self.net.eval()
        for turn, batch in enumerate(stream.in_order(0, 64)):
            inputs = self.augment(batch.images, "lip_start", turn)
            sums = sums + self._coefficients(inputs, self.net.output(inputs).features, "start", turn).sum(0)
            count += len(batch)
        self.targets.copy_(sums / count)

    def parameters(self) -> list[nn.Parameter]:
        return super().parameters() + ([self.targets] if self.targets.requires_grad else [])

    def replay_draws_for_step(self, index: StepIndex) -> tuple[str, ...]:
        """Return LiDER's own draws even if the base method replays nothing."""
        return super().replay_draws_for_step(index) or (LIPSCHITZ_DRAWS if len(self.buffer or ()) else ())

    def is_replay_step(self, batches: dict[str, Batch]) -> bool:
        return super().is_replay_step({name: batches[name] for name in batches if name not in LIPSCHITZ_DRAWS})

    def loss(self, batches: dict[str, Batch], outputs: dict[str, Output], index: StepIndex) -> dict[str, torch.Tensor]:
        terms = super().loss(batches, outputs, index)
        for name in (name for name in LIPSCHITZ_DRAWS if name in batches):
            values = self._coefficients(batches[name].inputs, outputs[name].features, name, *index.address)
            if name == "lip_mean":
                terms[name] = self.config.alpha_lip * values.mean()
            else:
                terms[name] = self.config.beta_lip * (values - F.relu(self.targets)).abs().mean()
        return terms

    def _coefficients(self, inputs: Any, features: Sequence[torch.Tensor], name: str, *address: int) -> torch.Tensor:
        """Return coefficients (samples, pairs) of consecutive maps, from the input to the last stage."""
        pairs, starts = list(pairwise([inputs, *features])), []
        for place, (a, _) in enumerate(pairs):
            starts.append(generator(self.config.seed, f"power/{name}/{place}", *address).random(a.shape[:2]))
        on_device = to_device(np.concatenate(starts, axis=1), inputs.device)  # one copy for all
        parts = on_device.split([start.shape[1] for start in starts], dim=1)
        return torch.stack([coefficients(*pair, part) for pair, part in zip(pairs, parts, strict=True)], dim=1)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"targets": self.targets.detach()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.targets.data.copy_(state["targets"])


@MODELS.register("er_ace_lider", help="LiDER on er_ace", options=lider_options(0.1, 0.3))
class ErAceLider(Lider, ErAce):
    draw_names = (*ErAce.draw_names, *LIPSCHITZ_DRAWS)


@MODELS.register("derpp_lider", help="LiDER on derpp", options=(*derpp.OPTIONS, *lider_options(0.3, 0.5)))
class DerppLider(Lider, derpp.Derpp):
    draw_names = (*derpp.Derpp.draw_names, *LIPSCHITZ_DRAWS)
