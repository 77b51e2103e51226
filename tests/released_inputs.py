"""What the released code was fed when the traces in `tests/traces` were recorded; everything follows from fixed seeds.

A trace is fifteen float64 steps over five tasks of two classes: batches of 6, 6 and 4 images a task, normalized but
never augmented. Weights, images, replay draws and the reservoir's numbers come from here.
"""

import zlib

import numpy as np

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615)
TASKS, CLASSES_PER_TASK, SIZES = 5, 2, (6, 6, 4)
RESERVOIR_NUMBERS = np.random.default_rng(11).random(1000)  # the n-th sample, counted from 0, has the n-th


def _named(name: str, offset: int = 0) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()) + offset)


def first_weights(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Of a parameter before the first step: kernels by fan-in, a small classifier, norms around 1 and 0."""
    noise = _named(name).standard_normal(shape)
    if len(shape) == 4:
        return noise * np.sqrt(2 / np.prod(shape[1:]))
    if name.startswith("classifier"):
        return 0.05 * noise
    return 0.2 * noise + float(name.endswith("weight"))


def stream(size: int) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """(task, uint8 images, labels) of every step. The second batch of a task has one class only, and in every other
    task the first batch has only its first."""
    rng, found = np.random.default_rng(7), []
    for task in range(TASKS):
        for turn, count in enumerate(SIZES):
            colours = rng.integers(0, 256, (count, 3, 1, 1))
            images = (colours + rng.normal(0, 60, (count, 3, size, size))).clip(0, 255).astype(np.uint8)
            labels = rng.integers(0, CLASSES_PER_TASK, count)
            if turn == 1:
                labels[:] = labels[0]
            elif turn == 0 and task % 2 == 0:
                labels[:] = 0
            found.append((task, images, labels.astype(np.int64) + task * CLASSES_PER_TASK))
    return found


def replayed_slots(step: int, which: int, filled: int, count: int) -> np.ndarray:
    return np.random.default_rng(1000 + 10 * step + which).choice(filled, min(count, filled), replace=False)


def probe(size: int) -> np.ndarray:
    """Eight images that are evaluated after the last step."""
    return np.random.default_rng(9).normal(128, 60, (8, 3, size, size)).clip(0, 255).astype(np.uint8)


def digest(name: str, values: np.ndarray) -> list[float]:
    """A tensor in three numbers: sum, sum of squares, and product with noise of its own."""
    noise = _named(name, 1).standard_normal(values.shape)
    return [float(values.sum()), float(np.square(values).sum()), float((values * noise).sum())]
