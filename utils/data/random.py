"""Randomness is addressed, not consumed.

Every draw comes from its own generator, addressed by (seed, stream, place). A run can therefore be resumed without
saving generator state, and switching on a probe or a logger cannot change a result. Philox is a counter-based
generator, so an address is a key and a starting counter.

The global generators of torch, numpy and Python, which code of others may use (`nn.Dropout`, `torch.rand`), are seeded
from an address before every step, hook and evaluation.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch


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


def seed_global_generators(seed: int, stream: str, *place: int) -> None:
    """Seed the global generators of torch (on all devices, without waiting for them), numpy and Python from an address.

    It takes some 6 µs, and is called before every step.
    """
    address = "/".join(map(str, (seed, stream, *place)))
    value = int.from_bytes(hashlib.blake2b(address.encode(), digest_size=8).digest(), "little")
    for each in (torch.default_generator, *torch.cuda.default_generators):  # those of CUDA exist once it is in use
        each.manual_seed(value)
    np.random.seed(value % 2**32)  # noqa: NPY002
    random.seed(value)


@contextmanager
def global_generators_restored() -> Iterator[None]:
    """Let the global generators on the host go on afterwards as if nothing had been drawn."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def class_order(seed: int, n_classes: int) -> np.ndarray:
    """Return the label in the stream of each class, as in the published runs. Seed 0 keeps the original order."""
    if seed == 0:
        return np.arange(n_classes)
    return np.random.default_rng(42 + seed).permutation(n_classes)
