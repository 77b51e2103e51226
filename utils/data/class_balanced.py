"""`class_balanced`: the same number of slots for every class seen so far (Soutif-Cormerais et al. 2023).

A class has capacity // (classes seen) slots; what remains of the division is unused. They hold a reservoir of the
class: each of its samples with the same probability. When a class appears, the others give up slots drawn at random.
"""

import numpy as np

from utils.config.registry import BUFFERS
from utils.data.buffer import Policy
from utils.data.stream import StreamSpec
from utils.step import Batch


@BUFFERS.register("class_balanced", help="the same number of slots for every class seen, each with a reservoir")
class ClassBalanced(Policy):
    saved = ("counts", "owners")

    def __init__(self, capacity: int, spec: StreamSpec):
        super().__init__(capacity, spec)
        self.require_slots("class", spec.n_classes)
        self.counts = np.zeros(spec.n_classes, dtype=np.int64)  # samples seen of every class
        self.owners = np.full(capacity, -1, dtype=np.int64)  # the class in every slot, -1 for none

    def slots(self, batch: Batch, draw: np.random.Generator) -> np.ndarray:
        return np.array([self._slot(label, draw) for label in batch.labels_host.tolist()], dtype=np.int64)

    def _slot(self, label: int, draw: np.random.Generator) -> int:
        self.counts[label] += 1
        quota = self.capacity // np.count_nonzero(self.counts)
        if self.counts[label] == 1:
            for other in np.flatnonzero(self.counts):
                self.owners[draw.permutation(np.flatnonzero(self.owners == other))[quota:]] = -1
        own = np.flatnonzero(self.owners == label)
        if len(own) < quota:
            slot = int(np.flatnonzero(self.owners == -1)[0])
            self.owners[slot] = label
            return slot
        place = int(draw.integers(self.counts[label]))
        return int(own[place]) if place < quota else -1

    def filled(self) -> np.ndarray:
        return np.flatnonzero(self.owners >= 0)
