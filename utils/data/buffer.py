"""Memory buffers: preallocated uint8 images on the device, decisions on the host.

Which slot a sample is written to and which slots are drawn is decided on the host, so that nothing waits for a device.
Labels and tasks are mirrored on the host for the same reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from utils.config.options import ByFidelity, Option, choice
from utils.config.registry import BUFFERS
from utils.data.stream import StreamSpec
from utils.device import send_together, to_device
from utils.errors import RunFailed, UsageError
from utils.step import Batch

if TYPE_CHECKING:
    from utils.config.resolve import Config


class Policy(ABC):
    """Decides which samples a buffer stores and which are drawn from it.

    `slots` and `filled` say what is stored. A policy may also override `sample`, which says what is drawn.

    Args:
        capacity: Number of slots (`--buffer_size`).
        spec: Facts about the stream, such as the number of classes.
        options: The policy's own options, by name.

    Example:
        >>> @BUFFERS.register("first", help="the first samples of the stream, for ever")
        ... class First(Policy):
        ...     saved = ("count",)
        ...     count = 0
        ...
        ...     def slots(self, batch, draw):
        ...         slots = self.count + np.arange(len(batch))
        ...         self.count = min(self.count + len(batch), self.capacity)
        ...         return np.where(slots < self.capacity, slots, -1)
        ...
        ...     def filled(self):
        ...         return np.arange(self.count)
    """

    saved: ClassVar[tuple[str, ...]] = ()  #: attributes that change, which checkpoints have: numbers or arrays
    stores_losses = False  #: the buffer has `losses`: (slots,) on the device, the samples' losses when they were stored

    def __init__(self, capacity: int, spec: StreamSpec):
        self.capacity, self.spec = capacity, spec

    @abstractmethod
    def slots(self, batch: Batch, draw: np.random.Generator) -> np.ndarray:
        """Return the slot of every sample of a batch, -1 for none. Of several in one slot the last is stored.

        Args:
            batch: The stream's batch, after the step on it: `images`, `labels`, `tasks`, `logits` and `losses` on the
                device, `labels_host` and `tasks_host` on the host. Reading a value of the device makes the host wait.
            draw: Generator for random decisions.
        """

    @abstractmethod
    def filled(self) -> np.ndarray:
        """Return the filled slots, in rising order."""

    def sample(self, buffer: Buffer, count: int, draw: np.random.Generator) -> np.ndarray:
        """Return the slots of different samples to replay; by default, all are equally likely.

        Args:
            buffer: The stored samples by slot: `images`, `labels`, `tasks` and, if the method stores them, `logits` on
                the device; `labels_host` and `tasks_host`; the slots in use (`filled`); and `losses`.
            count: Number of samples; all are drawn if the buffer has fewer.
            draw: Generator for random decisions.
        """
        return draw.choice(buffer.filled, min(count, len(buffer)), replace=False)

    def require_slots(self, by: str, owners: int) -> None:
        """Raise UsageError if there is less than one slot for each of so many owners, such as classes (`by`)."""
        if self.capacity < owners:
            raise UsageError(f"--buffer_size {self.capacity} is less than one slot for each {by} ({owners}); raise it")

    def state_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.saved}
        return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else np.asarray(value).tolist()
                for name, value in values.items()}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.saved:
            value = state[name]
            setattr(self, name, value.numpy().copy() if isinstance(value, torch.Tensor) else value)


# Runs with a reservoir were hashed with this option when it belonged to every buffer.
@BUFFERS.register("reservoir", help="every sample seen with the same probability", hashed={"ring_quota": None})
class Reservoir(Policy):
    """Every sample seen so far is in the buffer with the same probability."""

    saved = ("seen",)
    seen = 0

    def slots(self, batch: Batch, draw: np.random.Generator) -> np.ndarray:
        """Write the n-th sample seen to slot floor(u n), if there is such a slot, with u uniform in [0, 1)."""
        nth = np.arange(self.seen + 1, self.seen + 1 + len(batch))
        self.seen += len(batch)
        slots = (draw.random(len(nth)) * nth).astype(np.int64)
        slots[slots >= self.capacity] = -1
        return np.where(nth <= self.capacity, nth - 1, slots)

    def filled(self) -> np.ndarray:
        return np.arange(min(self.seen, self.capacity))


QUOTA = Option("ring_quota", choice("task", "class"), "What shares a ring buffer's slots.", ByFidelity("task", "class"))


@BUFFERS.register("ring", help="the newest samples of every task or class", options=(QUOTA,))
class Ring(Policy):
    """Every owner (a task or a class) has the same number of slots; its oldest sample is replaced first."""

    saved = ("counts",)

    def __init__(self, capacity: int, spec: StreamSpec, ring_quota: str):
        super().__init__(capacity, spec)
        self.by = "task" if spec.is_domain else ring_quota
        owners = spec.n_tasks if self.by == "task" else spec.n_classes
        self.require_slots(self.by, owners)
        self.quota = capacity // owners
        self.counts = np.zeros(owners, dtype=np.int64)

    def slots(self, batch: Batch, draw: np.random.Generator) -> np.ndarray:
        owners = batch.labels_host if self.by == "class" else batch.tasks_host
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

    def slots(self, batch: Batch, draw: np.random.Generator | None) -> np.ndarray:
        self.held = len(batch)
        return np.arange(self.held)

    def filled(self) -> np.ndarray:
        return np.arange(self.held)


class GreedyBalance(Policy):
    """GDumb's policy: a class below its share, capacity / classes seen, takes a slot of the largest class."""

    saved = ("counts", "seen", "owners")

    def __init__(self, capacity: int, spec: StreamSpec):
        super().__init__(capacity, spec)
        self.counts = np.zeros(spec.n_classes, dtype=np.int64)
        self.seen = np.zeros(spec.n_classes, dtype=bool)
        self.owners = np.full(capacity, -1, dtype=np.int64)  # the class in every slot

    def slots(self, batch: Batch, draw: np.random.Generator) -> np.ndarray:
        return np.array([self._slot(label, draw) for label in batch.labels_host.tolist()], dtype=np.int64)

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


def build_policy(config: Config, spec: StreamSpec) -> Policy:
    """Return the policy that `--buffer_mode` and its options choose."""
    policy: Policy = BUFFERS.get(config.buffer_mode).build(config.buffer_size, spec, **config.options_of("buffer_mode"))
    if type(policy).sample is not Policy.sample and getattr(config, "balance_replay", False):
        raise UsageError(f"--balance_replay and --buffer_mode {config.buffer_mode} both say what is drawn; remove one")
    return policy


class Buffer:
    """A buffer of samples.

    Args:
        size: Number of slots.
        policy: Decides what is stored and drawn.
        spec: Facts about the stream, such as the shape of images.
        device: Where images, labels, tasks and logits are stored.
        logits_dtype: Type of stored logits; None stores none.
    """

    def __init__(
        self, size: int, policy: Policy, spec: StreamSpec, device: torch.device, logits_dtype: torch.dtype | None = None
    ):
        self.policy = policy
        self.images = torch.zeros((size, *spec.image_shape), dtype=torch.uint8, device=device)
        self.labels = torch.full((size,), -1, dtype=torch.int64, device=device)  # -1: never written to
        self.tasks = torch.zeros_like(self.labels)
        self.labels_host, self.tasks_host = np.full(size, -1), np.zeros(size, dtype=np.int64)
        shape = (size, spec.n_classes)
        self.logits = None if logits_dtype is None else torch.zeros(shape, dtype=logits_dtype, device=device)
        self.losses = torch.zeros(size, device=device) if policy.stores_losses else None
        self.filled = policy.filled()  # the slots in use

    def __len__(self) -> int:
        return len(self.filled)

    def add(self, batch: Batch, draw: np.random.Generator | None = None) -> None:
        """Write samples to the slots that the policy chooses; a policy that draws nothing needs no generator."""
        slots = np.asarray(self.policy.slots(batch, draw))  # type: ignore[arg-type]
        if len(slots) != len(batch) or slots.dtype.kind not in "iu" or slots.max(initial=-1) >= len(self.labels_host):
            raise self._bad_policy("slots", "an integer below the buffer's size for every sample of the batch")
        self.filled = self.policy.filled()
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
        if self.losses is not None:
            self.losses.index_copy_(0, target, batch.losses.index_select(0, origin))

    def sample_slots(self, count: int, draw: np.random.Generator, *, balanced: bool = False) -> np.ndarray:
        """Return the slots of different samples, which the policy chooses.

        Args:
            count: Number of samples; all are drawn if the buffer has fewer.
            draw: Random generator.
            balanced: Draw equally many samples of each task, as far as the buffer has them.
        """
        if not balanced:
            slots = np.asarray(self.policy.sample(self, count, draw))
            if slots.dtype.kind not in "iu" or not len(slots) or min(slots.min(), self.labels_host[slots].min()) < 0:
                raise self._bad_policy("sample", "slots that hold samples")
            return slots
        # One sample of every task, then a second one, and so on; in the last round, tasks are drawn at random.
        slots = draw.permutation(self.filled)
        slots = slots[np.argsort(self.tasks_host[slots], kind="stable")]
        _, first, sizes = np.unique(self.tasks_host[slots], return_index=True, return_counts=True)
        turn = np.arange(len(slots)) - np.repeat(first, sizes)
        return slots[np.lexsort((draw.random(len(slots)), turn))[:count]]

    def _bad_policy(self, method: str, wanted: str) -> RunFailed:
        return RunFailed(
            f"`{method}` of the buffer's policy {type(self.policy).__name__} must return {wanted}; repair it"
        )

    def gather(self, slots: np.ndarray, slots_on_device: torch.Tensor | None = None) -> Batch:
        """Return the samples in some slots, of which the device may have a copy already."""
        if slots_on_device is None:
            slots_on_device = to_device(np.asarray(slots, dtype=np.int64), self.labels.device)
        names = [name for name in self._tensors() if name != "losses"]
        stored = {name: getattr(self, name).index_select(0, slots_on_device) for name in names}
        return Batch(labels_host=self.labels_host[slots], tasks_host=self.tasks_host[slots], **stored)

    def all_samples(self) -> Batch:
        """Return all samples, in the order of their slots."""
        return self.gather(self.filled)

    def state_dict(self) -> dict[str, Any]:
        state = {"policy": self.policy.state_dict()}
        return state | {name: getattr(self, name) for name in self._tensors()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.filled = self.policy.filled()
        for name in self._tensors():
            getattr(self, name).copy_(state[name])
        self.labels_host[:], self.tasks_host[:] = state["labels"].cpu().numpy(), state["tasks"].cpu().numpy()

    def _tensors(self) -> list[str]:
        names = ("images", "labels", "tasks", "logits", "losses")
        return [name for name in names if getattr(self, name) is not None]
