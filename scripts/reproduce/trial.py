"""How long a step takes where nothing comparable has been run yet: a few steps on noise of the data's shape, which need
not be there. Evaluations, and what a method does at the ends of tasks, are not in it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from models.method import Method
from utils.config.arguments import Config
from utils.config.registry import MODELS
from utils.data.stream import StreamSpec, split_of
from utils.device import pick_device
from utils.errors import UsageError
from utils.run.build import build_method, build_network
from utils.step import Batch, Place

FIRST, MOST, SECONDS = 2, 5, 1.0  # steps before the clock starts, and on it; either ends after these seconds


@dataclass(frozen=True)
class Trial:
    steps: int
    seconds: float
    device: str
    batch_size: int

    def seconds_per_step(self, batch_size: int) -> float:
        """A CPU's time goes by samples; a GPU's, for batches this small, by steps."""
        return self.seconds / self.steps * (batch_size / self.batch_size if self.device == "cpu" else 1)

    def __str__(self) -> str:
        return f"measured over {self.steps} step{'s' if self.steps > 1 else ''} on this machine's {self.device}"


def try_out(config: Config, spec: StreamSpec, num_threads: int = 1) -> Trial | None:
    """None for a method whose steps are not what takes its time, for what cannot be built here, and for large images on
    a CPU, of which one step takes longer than anyone waits for a list."""
    if MODELS.get(config.model).build.step is not Method.step:
        return None
    if spec.streamed and pick_device(config.device).type == "cpu":
        return None
    channels, threads = spec.image_shape[0], torch.get_num_threads()
    spec = replace(spec, mean=(0.5,) * channels, std=(0.25,) * channels)  # a folder's are not known yet
    torch.set_num_threads(num_threads)
    try:
        device = pick_device(config.device)
        net = build_network(config, spec, device)
        return _timed(build_method(config, spec, net, device), noise(spec, config.batch_size, device), device)
    except UsageError:
        return None
    finally:
        torch.set_num_threads(threads)


def _timed(method: Method, batch: Batch, device: torch.device) -> Trial:
    method.net.train()
    method.grow()
    begun, started, first = _now(device), None, 0
    for number in range(FIRST + MOST):
        if started is None and (number == FIRST or _now(device) - begun > SECONDS):
            started, first = _now(device), number  # the first step never counts: it replays nothing
        method.step(batch, Place(0, number))
        if started is not None and _now(device) - started > SECONDS:
            break
    return Trial(number + 1 - first, _now(device) - started, device.type, len(batch))


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def noise(spec: StreamSpec, size: int, device: torch.device) -> Batch:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (size, *spec.image_shape), dtype=np.uint8)
    return split_of(images, draw.choice(spec.classes_of(0), size)).to(device).of_task(0)
