"""What a method is: which draws from the buffer a step wants, and what the loss of the step is.

The loop forwards the parts of a step (the current batch and the draws), together or one by one as
`--replay_forward` says, and hands the outputs to `loss`. A method therefore never calls the network in a step,
and there is one copy of it for every norm and every way of batching.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from utils.data.augment import Augment
from utils.data.buffer import Buffer
from utils.data.random import generator
from utils.data.stream import Split, Stream

CURRENT = "current"


@dataclass(frozen=True)
class Part:
    """Samples that go through the network in a step."""

    inputs: torch.Tensor
    labels: torch.Tensor
    labels_host: np.ndarray | None
    tasks: np.ndarray
    logits: torch.Tensor | None = None  # what the network said when a replayed sample was stored


@dataclass(frozen=True)
class Output:
    logits: torch.Tensor
    features: list[torch.Tensor]


@dataclass(frozen=True)
class Place:
    """Where in the run a step is; its number addresses all randomness of the step."""

    task: int
    step: int


class Method:
    """Base class; a subclass overrides `draws` and `loss`, and `prepare` if it needs a look at the first task."""

    uses_buffer = True
    stores_logits = False
    needs_features = False
    joint_training = False  # all tasks as one
    always_joint_forward = False  # what `--replay_forward auto` means for this method, whatever the norm
    needs_own_classes = False  # makes no sense where tasks share their classes

    def __init__(self, net: nn.Module, config, n_classes: int, augment: Augment, buffer: Buffer | None):
        self.net, self.config, self.n_classes, self.augment, self.buffer = net, config, n_classes, augment, buffer

    def prepare(self, stream: Stream) -> None:
        """Before the first step."""

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of the method's own, beside the network's."""
        return []

    def begin_task(self, task: int) -> None:
        """Before the first step of every task."""

    def parts(self, batch: Split, place: Place) -> dict[str, Part]:
        inputs = self.augment(batch.images, CURRENT, place.step)
        tasks = np.full(len(batch), place.task)
        current = Part(inputs, batch.labels, batch.labels_host, tasks)
        return {CURRENT: current} | self.draws(place)

    def draws(self, place: Place) -> dict[str, Part]:
        """The replay draws of this step by name; none by default."""
        return {}

    def draw(self, name: str, place: Place) -> Part:
        sample = self.buffer.sample(
            self.config.minibatch_size, generator(self.config.seed, f"replay/{name}", place.step)
        )
        inputs = self.augment(sample.images, f"replay/{name}", place.step)
        return Part(inputs, sample.labels, None, sample.tasks, sample.logits)

    def replayed(self, parts: dict[str, Part]) -> bool:
        """Did the method replay in this step? Then the norms' penalty joins the loss."""
        return len(parts) > 1

    def loss(self, parts: dict[str, Part], outputs: dict[str, Output], place: Place) -> torch.Tensor:
        raise NotImplementedError

    def remember(self, batch: Split, outputs: dict[str, Output], place: Place) -> None:
        """After the optimizer's step: offer the raw batch to the buffer."""
        if self.buffer is None:
            return
        logits = outputs[CURRENT].logits.detach() if self.stores_logits else None
        tasks = np.full(len(batch), place.task)
        draw = generator(self.config.seed, "buffer", place.step)
        self.buffer.add(batch.images, batch.labels, batch.labels_host, tasks, draw, logits)

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        pass
