"""What benchmarks share: timing, workloads on random data, and a description of the machine."""

from __future__ import annotations

import gc
import os
import platform
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch

from backbone.norms import norm_factory
from utils.config.resolve import resolve
from utils.data.augment import Crop, Flip
from utils.data.stream import Stream, StreamSpec, TensorStream, make_batch, ranges
from utils.device import pick_device
from utils.packages import version
from utils.run.build import build_method, build_network
from utils.run.records import commit
from utils.run.training import Cursor, Training
from utils.step import Batch, StepIndex

TASKS, CLASSES = 5, 10
T = TypeVar("T")


def now() -> float:
    """Return the time in seconds, after a GPU has finished its queue."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def interleaved(candidates: Mapping[T, Callable[[], object]], repetitions: int, warmup: int = 3) -> dict[T, np.ndarray]:
    """Return the seconds of every repetition of every candidate.

    Every repetition runs each candidate once, in rotating order, so that noise of the machine hits all alike.
    """
    names = list(candidates)
    seconds = {name: np.zeros(repetitions) for name in names}
    for name in names * warmup:
        candidates[name]()
    gc.collect()
    gc.disable()
    for repetition in range(repetitions):
        for name in names[repetition % len(names) :] + names[: repetition % len(names)]:
            start = now()
            candidates[name]()
            seconds[name][repetition] = now() - start
    gc.enable()
    return seconds


def ratio(seconds: np.ndarray, base: np.ndarray) -> dict[str, float]:
    """Return the median of the paired ratios with a 95 % bootstrap interval."""
    ratios = seconds / base
    draws = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return {"ratio": float(np.median(ratios)), "low": float(low), "high": float(high)}


def median_ms(seconds: np.ndarray) -> float:
    return float(np.median(seconds)) * 1e3


def machine(threads: int) -> dict[str, Any]:
    """Return hardware and versions, but neither host name nor paths."""
    cpu_info = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", cpu_info.read_text(), re.MULTILINE) if cpu_info.exists() else None
    return {
        "cpu": model[1] if model else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": threads,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": version("triton"),
        "commit": commit(),
    }


def norm_options(norm: str, width: int) -> dict[str, Any]:
    """Return the options that a norm needs at a width: half as many groups as channels, as in the paper's 32 and 64."""
    return {"groups": width // 2} if norm in ("gn", "cn") else {}


def norm_layers(width: int, batch: int, norm: str, **options: Any) -> Callable[[], None]:
    """Return a function that runs forward and backward of ResNet-18's 20 norm layers, each on an input of its own."""
    factory, device = norm_factory(norm, **options), pick_device("auto")
    shapes = [(width * 2**stage, 32 // 2**stage) for stage in range(4) for _ in range(5)]
    layers = [factory(channels, spatial=(side, side)).to(device) for channels, side in shapes]
    factory.shared.to(device)
    for task in range(TASKS):
        factory.shared.begin_task(n_classes=task + 1)
    inputs, gradients = ([torch.randn(batch, c, side, side, device=device) for c, side in shapes] for _ in range(2))
    leaves = [tensor.requires_grad_() for tensor in inputs]
    leaves += [parameter for module in (*layers, factory.shared) for parameter in module.parameters()]
    tasks = torch.cat([torch.full((batch // 2,), TASKS - 1), torch.arange(batch - batch // 2) % TASKS]).to(device)

    def forward_and_backward() -> None:
        weight = factory.shared.penalty_weight(1, True)
        with factory.shared.forward_pass(tasks, penalized=weight > 0) as this:
            outputs = [layer(tensor) for layer, tensor in zip(layers, inputs, strict=True)]
        roots, directions = outputs, gradients
        if this.report.penalty is not None:
            penalty = weight * this.report.penalty
            roots, directions = [*outputs, penalty], [*gradients, torch.ones_like(penalty)]
        # `backward` would copy gradients into the leaves, which does not happen to inputs inside a network.
        torch.autograd.grad(roots, leaves, directions, allow_unused=True)

    return forward_and_backward


def new_training(train_size: int = 500, test_size: int = 10, **options: Any) -> Training:
    """Return a run that has not begun, on random images in the form of Split CIFAR-10, with so many for each task."""
    config = resolve({"dataset": "seq-cifar10", **options})
    sizes = (train_size,) * TASKS, (test_size,) * TASKS
    mean, std, augmentation = (0.5,) * 3, (0.25,) * 3, (Crop(4), Flip())
    spec = StreamSpec("noise", "class", TASKS, CLASSES, (3, 32, 32), mean, std, augmentation, *sizes)
    rng, device = np.random.default_rng(0), pick_device(config.device)

    def split(size: int) -> Batch:
        labels = np.arange(size * TASKS) * CLASSES // (size * TASKS)
        return make_batch(rng.integers(0, 256, (len(labels), *spec.image_shape), dtype=np.uint8), labels)

    where = ranges(sizes[0]), ranges(sizes[1])
    tensors = TensorStream(spec, split(train_size), split(test_size), *where, config.seed, config.batch_size)
    method = build_method(config, spec, build_network(config, spec, device), device)
    return Training(config, cast(Stream, tensors.to(device)), method)


def training_step(**options: Any) -> Callable[[], object]:
    """Return a function that makes one whole step of the second task, with a full buffer, always on the same batch."""
    training = new_training(buffer_size=100, **options)
    method, stream = training.method, training.stream
    training.begin_task()
    first = next(iter(stream.in_order(0, 100)))
    assert method.buffer is not None, "only methods with a buffer replay"
    logits = torch.zeros(len(first), CLASSES, device=first.labels.device)
    method.buffer.add(replace(first, logits=logits), np.random.default_rng(0))
    index = StepIndex(task=1, step=len(first) // training.config.batch_size)
    training.cursor = Cursor(task=index.task, step=index.step)
    training.begin_task()
    method.net.train()
    batch = next(iter(stream.in_order(index.task, training.config.batch_size)))
    return lambda: method.step(batch, index)
