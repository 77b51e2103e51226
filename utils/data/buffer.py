"""Memory buffers: preallocated uint8 images on the device, decisions on the host.

Which slot a sample goes to and which slots are drawn is decided by small host draws, so filling, writing and
drawing never wait for a device; labels and tasks are mirrored on the host for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from utils.data.stream import StreamSpec
from utils.device import to_device
from utils.errors import UsageError
from utils.config.options import ByFidelity, Option, SameAs, choice, integer

OPTIONS = (
    Option("buffer_size", integer(1, 10**8), "images in the memory buffer"),
    Option("minibatch_size", integer(1, 10**6), "images of one replay draw", default=SameAs("batch_size")),
    Option("buffer_mode", choice("reservoir", "ring"), "how the buffer picks what it keeps", default="reservoir"),
    Option(
        "ring_quota",
        choice("task", "class"),
        "what the ring buffer shares its slots among; always tasks where tasks share their classes",
        default=ByFidelity(official="task", paper="class"),
    ),
    Option(
        "replay_forward",
        choice("auto", "joint", "separate"),
        "current and replayed samples in one forward or one each; auto: joint for adab2n and er, else separate",
        default=ByFidelity(official="auto", paper="joint"),
    ),
)


@dataclass(frozen=True)
class Sample:
    images: torch.Tensor
    labels: torch.Tensor
    tasks: np.ndarray
    logits: torch.Tensor | None


class Reservoir:
    """Every sample seen so far is in the buffer with the same probability."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.seen = 0

    def slots(self, labels: np.ndarray, tasks: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """The slot of every sample, -1 for none: the n-th seen goes to floor(u n) if that is a slot."""
        nth = np.arange(self.seen + 1, self.seen + 1 + len(labels))
        self.seen += len(labels)
        slots = (draw.random(len(nth)) * nth).astype(np.int64)
        slots[slots >= self.capacity] = -1
        if self.seen - len(nth) < self.capacity:
            slots = np.where(nth <= self.capacity, nth - 1, slots)
        return slots

    def filled(self) -> np.ndarray | int:
        return min(self.seen, self.capacity)

    def state_dict(self) -> dict:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict) -> None:
        self.seen = state["seen"]


class Ring:
    """Every owner (a task or a class) has the same number of slots; its oldest sample goes first."""

    def __init__(self, capacity: int, owners: int, by: str):
        if capacity < owners:
            raise UsageError(
                f"--buffer_size {capacity} leaves no slot for some of the {owners} {by} shares of the ring"
            )
        self.quota = capacity // owners
        self.by = by
        self.counts = np.zeros(owners, dtype=np.int64)

    def slots(self, labels: np.ndarray, tasks: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        owners = labels if self.by == "class" else tasks
        slots = np.empty(len(owners), dtype=np.int64)
        for owner in np.unique(owners):
            mine = owners == owner
            turn = self.counts[owner] + np.arange(mine.sum())
            slots[mine] = owner * self.quota + turn % self.quota
            self.counts[owner] += mine.sum()
        return slots

    def filled(self) -> np.ndarray | int:
        held = np.minimum(self.counts, self.quota)
        return np.concatenate([owner * self.quota + np.arange(count) for owner, count in enumerate(held)])

    def state_dict(self) -> dict:
        return {"counts": self.counts.tolist()}

    def load_state_dict(self, state: dict) -> None:
        self.counts = np.array(state["counts"], dtype=np.int64)


def build_policy(config, spec: StreamSpec) -> Reservoir | Ring:
    if config.buffer_mode == "reservoir":
        return Reservoir(config.buffer_size)
    by = "task" if spec.is_domain else config.ring_quota
    return Ring(config.buffer_size, spec.n_tasks if by == "task" else spec.n_classes, by)


class Buffer:
    def __init__(self, config, spec: StreamSpec, device: torch.device, *, logits_dtype: torch.dtype | None = None):
        size = config.buffer_size
        self.policy = build_policy(config, spec)
        self.images = torch.zeros((size, *spec.image_shape), dtype=torch.uint8, device=device)
        self.labels = torch.zeros(size, dtype=torch.int64, device=device)
        self.tasks = np.zeros(size, dtype=np.int64)
        self.logits = None
        if logits_dtype is not None:
            self.logits = torch.zeros((size, spec.n_classes), dtype=logits_dtype, device=device)
        self._filled = self.policy.filled()

    def __len__(self) -> int:
        return self._filled if isinstance(self._filled, int) else len(self._filled)

    def add(self, images, labels, labels_host, tasks, draw: np.random.Generator, logits=None) -> None:
        slots = self.policy.slots(labels_host, tasks, draw)
        self._filled = self.policy.filled()
        # Within a batch the last write to a slot wins; settled here, since a device may write in any order.
        last_write = {slot: index for index, slot in enumerate(slots.tolist()) if slot >= 0}
        if not last_write:
            return
        slots, source = np.array([*last_write]), np.array([*last_write.values()])
        self.tasks[slots] = tasks[source]
        slots, source = to_device(np.stack([slots, source]), self.labels)
        self.images.index_copy_(0, slots, images.index_select(0, source))
        self.labels.index_copy_(0, slots, labels.index_select(0, source))
        if self.logits is not None:
            self.logits.index_copy_(0, slots, logits.index_select(0, source).to(self.logits.dtype))

    def sample(self, count: int, draw: np.random.Generator) -> Sample:
        """`count` different samples, or all there are if fewer."""
        slots = draw.choice(self._filled, min(count, len(self)), replace=False)
        index = to_device(slots, self.labels)
        logits = None if self.logits is None else self.logits.index_select(0, index)
        return Sample(self.images.index_select(0, index), self.labels.index_select(0, index), self.tasks[slots], logits)

    def state_dict(self) -> dict:
        state = {"policy": self.policy.state_dict(), "images": self.images, "labels": self.labels}
        state["tasks"] = torch.from_numpy(self.tasks)
        return state if self.logits is None else state | {"logits": self.logits}

    def load_state_dict(self, state: dict) -> None:
        self.policy.load_state_dict(state["policy"])
        self._filled = self.policy.filled()
        self.images.copy_(state["images"])
        self.labels.copy_(state["labels"])
        self.tasks[:] = state["tasks"].numpy()
        if self.logits is not None:
            self.logits.copy_(state["logits"])
