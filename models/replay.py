"""The batches of a training step: the stream's batch and the draws from the buffer, augmented, on the device."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from utils.config.options import ONE_OF_TASKS_SEEN
from utils.data.augment import Augment
from utils.data.buffer import Buffer
from utils.data.random import generator
from utils.device import send_together
from utils.step import CURRENT, Batch, StepIndex

if TYPE_CHECKING:
    from utils.config.resolve import Config


def draw_sizes(config: Config, n_draws: int, tasks_seen: int) -> list[int]:
    """Return the number of images in each of a step's draws: `minibatch_size`.

    With `--current_share r`, the draws together have batch_size (1/r - 1) images, rounded, so that a full batch of the
    stream is the share r of all images of the step. They are divided equally, the first draws get the remainder.
    """
    if not n_draws:
        return []
    if config.current_share is None:
        return [config.minibatch_size] * n_draws
    share = Fraction(1, tasks_seen) if config.current_share == ONE_OF_TASKS_SEEN else Fraction(config.current_share)
    n_images = round(config.batch_size * (1 / share - 1))
    return [(n_images + later) // n_draws for later in reversed(range(n_draws))]


class BatchAssembler:
    """Draws from the buffer and augments."""

    def __init__(self, config: Config, augment: Augment, buffer: Buffer | None):
        self.config, self.augment, self.buffer = config, augment, buffer

    def draw(self, name: str, size: int, index: StepIndex) -> np.ndarray:
        """Return the buffer slots of one draw."""
        assert self.buffer is not None
        random = generator(self.config.seed, f"replay/{name}", *index.address)
        return self.buffer.sample_slots(size, random, balanced=self.config.balance_replay)

    def assemble(self, batch: Batch, draw_names: tuple[str, ...], index: StepIndex) -> dict[str, Batch]:
        """Return the augmented batches of a step by name: `CURRENT`, then the draws.

        All random numbers and slots are chosen on the host and copied to the device at once.
        """
        sizes = draw_sizes(self.config, len(draw_names), index.task + 1)
        slots = {name: self.draw(name, size, index) for name, size in zip(draw_names, sizes, strict=True) if size}
        crops = [self.augment.draw(len(batch), CURRENT, *index.address)]
        crops += [self.augment.draw(len(chosen), f"replay/{name}", *index.address) for name, chosen in slots.items()]
        on_device = iter(send_together([*crops, *slots.values()], batch.labels.device))
        crops_on_device = [next(on_device) for _ in crops]
        raw = {CURRENT: batch}
        if self.buffer is not None:
            raw |= {name: self.buffer.gather(chosen, next(on_device)) for name, chosen in slots.items()}
        return {
            name: replace(samples, inputs=self.augment.apply(samples.images, host, device))
            for (name, samples), host, device in zip(raw.items(), crops, crops_on_device, strict=True)
        }
