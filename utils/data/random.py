"""Randomness is addressed, not consumed.

Every draw comes from its own generator, addressed by (seed, stream, place). A run can therefore be resumed without
saving generator state, and switching on a probe or a logger cannot change a result. Philox is a counter-based
generator, so an address is a key and a starting counter.
"""

import hashlib
from functools import lru_cache

import numpy as np


@lru_cache(maxsize=256)
def _key(seed: int, stream: str) -> np.ndarray:
    return np.frombuffer(hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=16).digest(), dtype=np.uint64)


def generator(seed: int, stream: str, *place: int) -> np.random.Generator:
    """Return the random generator at an address.

    Args:
        seed: Seed of the run.
        stream: Name of what the draws are for, such as "shuffle".
        place: Up to two non-negative integers, such as (step,) or (task, epoch).
    """
    counter = np.zeros(4, dtype=np.uint64)
    # The two low words count the draws of one address: 2^128 until they overlap with those of the next.
    counter[2 : 2 + len(place)] = place
    return np.random.Generator(np.random.Philox(key=_key(seed, stream), counter=counter))


def torch_seed(seed: int, stream: str) -> int:
    """Return a seed for torch's own generators."""
    return int(generator(seed, stream).integers(2**63))


def class_order(seed: int, n_classes: int) -> np.ndarray:
    """Return the label in the stream of each class, as in the published runs. Seed 0 keeps the original order."""
    if seed == 0:
        return np.arange(n_classes)
    return np.random.default_rng(42 + seed).permutation(n_classes)
