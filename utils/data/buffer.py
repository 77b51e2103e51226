"""Memory buffers: preallocated uint8 images on the device, decisions on the host.

Which slot a sample is written to and which slots are drawn is decided on the host, so that nothing waits for a device.
Labels and tasks are mirrored on the host for the same reason.
"""

from abc import ABC, abstractmethod
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch

from utils.data.stream import StreamSpec
from utils.device import send_together
from utils.errors import UsageError
from utils.step import Batch


class Policy(ABC):
    """Decides which slot of a buffer a sample is written to."""

    saved: ClassVar[tuple[str, ...]]  # attributes that change: numbers or arrays

    def __init__(self, capacity: int):
        self.capacity = capacity  # number of slots

    @abstractmethod
    def slots(self, labels: np.ndarray, tasks: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """Return the slot of every sample of a batch, -1 for none.

        Args:
            labels: (N,) labels of the samples, on the host.
            tasks: (N,) their tasks.
            draw: Generator for random decisions.
        """

    @abstractmethod
    def filled(self) -> np.ndarray:
        """Return the filled slots."""

    def state_dict(self) -> dict[str, Any]:
        return {name: np.asarray(getattr(self, name)).tolist() for name in self.saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.saved:
            is_array = isinstance(getattr(self, name), np.ndarray)
            setattr(self, name, np.array(state[name]) if is_array else state[name])


class Reservoir(Policy):
    """Every sample seen so far is in the buffer with the same probability."""

    saved = ("seen",)
    seen = 0

    def slots(self, labels: np.ndarray, tasks: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """Write the n-th sample seen to slot floor(u n), if there is such a slot, with u uniform in [0, 1)."""
        nth = np.arange(self.seen + 1, self.seen + 1 + len(labels))
        self.seen += len(labels)
        slots = (draw.random(len(nth)) * nth).astype(np.int64)
        slots[slots >= self.capacity] = -1
        return np.where(nth <= self.capacity, nth - 1, slots)

    def filled(self) -> np.ndarray:
        return np.arange(min(self.seen, self.capacity))


class Ring(Policy):
    """Every owner (a task or a class) has the same number of slots; its oldest sample is replaced first."""

    saved = ("counts",)

    def __init__(self, capacity: int, owners: int, by: str):
        if capacity < owners:
            raise UsageError(f"--buffer_size {capacity} is less than one slot for each {by} ({owners}); raise it")
        super().__init__(capacity)
        self.quota, self.by = capacity // owners, by
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

    def filled(self) -> np.ndarray:
        held = np.minimum(self.counts, self.quota)
        return np.concatenate([owner * self.quota + np.arange(count) for owner, count in enumerate(held)])


class MethodManaged(Policy):
    """A batch replaces all samples in the buffer: the method chooses them."""

    saved = ("held",)
    held = 0

    def slots(self, labels: np.ndarray, tasks: np.ndarray, draw: np.random.Generator | None) -> np.ndarray:
        self.held = len(labels)
        return np.arange(self.held)

    def filled(self) -> np.ndarray:
        return np.arange(self.held)


class GreedyBalance(Policy):
    """GDumb's policy: a class below its share, capacity / classes seen, takes a slot of the largest class."""

    saved = ("counts", "seen", "owners")

    def __init__(self, capacity: int, n_classes: int):
        super().__init__(capacity)
        self.counts = np.zeros(n_classes, dtype=np.int64)
        self.seen = np.zeros(n_classes, dtype=bool)
        self.owners = np.full(capacity, -1, dtype=np.int64)  # the class in every slot

    def slots(self, labels: np.ndarray, tasks: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        return np.array([self._slot(label, draw) for label in labels.tolist()], dtype=np.int64)

    def _slot(self, label: int, draw: np.random.Generator) -> int:
        self.seen[label] = True
        if self.counts[label] >= self.capacity / self.seen.sum():
            return -1
        slot = int(self.counts.sum())
        if slot == self.capacity:
            largest = int(self.counts.argmax())
            slot = int(draw.choice(np.flatnonzero(self.owners == largest)))
            self.counts[largest] -= 1
        self.counts[label] += 1
        self.owners[slot] = label
        return slot

    def filled(self) -> np.ndarray:
        return np.arange(self.counts.sum())


def build_policy(config: SimpleNamespace, spec: StreamSpec) -> Reservoir | Ring:
    """Return the policy that `--buffer_mode` and `--ring_quota` choose."""
    if config.buffer_mode == "reservoir":
        return Reservoir(config.buffer_size)
    by = "task" if spec.is_domain else config.ring_quota
    return Ring(config.buffer_size, spec.n_tasks if by == "task" else spec.n_classes, by)


class Buffer:
    """A buffer of samples.

    Args:
        size: Number of slots.
        policy: Decides which slot a sample is written to.
        spec: Facts about the stream, such as the shape of images.
        device: Where images, labels, tasks and logits are stored.
        logits_dtype: Type of stored logits; None stores none.
    """

    def __init__(
        self, size: int, policy: Policy, spec: StreamSpec, device: torch.device, logits_dtype: torch.dtype | None = None
    ):
        self.policy = policy
        self.images = torch.zeros((size, *spec.image_shape), dtype=torch.uint8, device=device)
        self.labels = torch.zeros(size, dtype=torch.int64, device=device)
        self.tasks = torch.zeros_like(self.labels)
        self.labels_host, self.tasks_host = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
        shape = (size, spec.n_classes)
        self.logits = None if logits_dtype is None else torch.zeros(shape, dtype=logits_dtype, device=device)
        self._filled = self.policy.filled()

    def __len__(self) -> int:
        return len(self._filled)

    def add(self, batch: Batch, draw: np.random.Generator | None = None) -> None:
        """Write samples to the slots that the policy chooses; a policy that draws nothing needs no generator."""
        slots = self.policy.slots(batch.labels_host, batch.tasks_host, draw)  # type: ignore[arg-type]
        self._filled = self.policy.filled()
        # The last write of a batch to a slot wins. Decided here, because a device may write in any order.
        last_write = {slot: index for index, slot in enumerate(slots.tolist()) if slot >= 0}
        if not last_write:
            return
        slots, source = np.array([*last_write]), np.array([*last_write.values()])
        self.labels_host[slots], self.tasks_host[slots] = batch.labels_host[source], batch.tasks_host[source]
        target, origin = send_together([slots, source], self.labels.device)
        for stored, given in ((self.images, batch.images), (self.labels, batch.labels), (self.tasks, batch.tasks)):
            stored.index_copy_(0, target, given.index_select(0, origin))
        if self.logits is not None and batch.logits is not None:
            self.logits.index_copy_(0, target, batch.logits.index_select(0, origin).to(self.logits.dtype))

    def sample_slots(self, count: int, draw: np.random.Generator, *, balanced: bool = False) -> np.ndarray:
        """Return the slots of different samples drawn at random.

        Args:
            count: Number of samples; all are drawn if the buffer has fewer.
            draw: Random generator.
            balanced: Draw equally many samples of each task, as far as the buffer has them.
        """
        if not balanced:
            return draw.choice(self._filled, min(count, len(self)), replace=False)
        # One sample of every task, then a second one, and so on; in the last round, tasks are drawn at random.
        slots = draw.permutation(self._filled)
        slots = slots[np.argsort(self.tasks_host[slots], kind="stable")]
        _, first, sizes = np.unique(self.tasks_host[slots], return_index=True, return_counts=True)
        turn = np.arange(len(slots)) - np.repeat(first, sizes)
        return slots[np.lexsort((draw.random(len(slots)), turn))[:count]]

    def gather(self, slots: np.ndarray, slots_on_device: torch.Tensor) -> Batch:
        """Return the samples in some slots, given on the host and on the device."""
        stored = {name: getattr(self, name).index_select(0, slots_on_device) for name in self._tensors()}
        return Batch(labels_host=self.labels_host[slots], tasks_host=self.tasks_host[slots], **stored)

    def all_samples(self) -> Batch:
        """Return all samples, in the order of their slots."""
        return self.gather(self._filled, *send_together([self._filled], self.labels.device))

    def state_dict(self) -> dict[str, Any]:
        state = {"policy": self.policy.state_dict()}
        return state | {name: getattr(self, name) for name in self._tensors()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self._filled = self.policy.filled()
        for name in self._tensors():
            getattr(self, name).copy_(state[name])
        self.labels_host[:], self.tasks_host[:] = state["labels"].cpu().numpy(), state["tasks"].cpu().numpy()

    def _tensors(self) -> list[str]:
        return ["images", "labels", "tasks", *(["logits"] if self.logits is not None else [])]
