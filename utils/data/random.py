"""Randomness is addressed, not consumed.

Every draw comes from its own generator, addressed by (seed, stream, place). A run can therefore be resumed
without saving generator state, and turning a probe or a logger on cannot change a result. Philox is a
counter-based generator, so an address is simply a key and a starting counter.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np


class _Key(np.random.bit_generator.ISeedSequence):
    """Philox takes its key from here. Given as `key=` it would first ask the system for entropy, and throw it away."""

    def __init__(self, words: np.ndarray):
        self.words = words

    def generate_state(self, n_words, dtype=np.uint32):
        return self.words


@lru_cache(maxsize=256)
def _key(seed: int, stream: str) -> _Key:
    digest = hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=16).digest()
    return _Key(np.frombuffer(digest, dtype=np.uint64))


def generator(seed: int, stream: str, *place: int) -> np.random.Generator:
    """The generator of `stream` at `place`: one or two non-negative integers such as (step,) or (task, epoch)."""
    counter = np.zeros(4, dtype=np.uint64)
    # The two low words count within one address: 2^128 draws before two addresses could meet.
    counter[2 : 2 + len(place)] = place
    return np.random.Generator(np.random.Philox(_key(seed, stream), counter=counter))


def torch_seed(seed: int, stream: str) -> int:
    return int(generator(seed, stream).integers(2**63))


def class_order(seed: int, n_classes: int) -> np.ndarray:
    """Where each class goes in the published runs: seed 0 keeps the data set's own order."""
    if seed == 0:
        return np.arange(n_classes)
    return np.random.default_rng(42 + seed).permutation(n_classes)
