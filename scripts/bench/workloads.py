"""Workloads that are timed: stacks of norm layers with the shapes of ResNet-18, and training on random images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from backbone.norms import norm_factory
from utils.config.resolve import Config, resolve
from utils.data.augment import Crop, Flip
from utils.data.stream import Stream, StreamSpec, TensorStream, make_batch, ranges
from utils.device import pick_device
from utils.run.build import build_method, build_network
from utils.run.training import Cursor, Training
from utils.step import Batch, StepIndex

LAYERS_PER_STAGE = 5
TASKS, CLASSES = 5, 10


def resnet18_shapes(width: int = 64, size: int = 32) -> list[tuple[int, int]]:
    """Return (channels, side of the map) of the 20 norm layers: four stages of five layers each."""
    return [(width * 2**stage, size // 2**stage) for stage in range(4) for _ in range(LAYERS_PER_STAGE)]


def norm_options(norm: str, width: int) -> dict[str, int]:
    """Return the options that a norm needs at a width: half as many groups as channels, as in the paper's 32 and 64."""
    return {"groups": width // 2} if norm in ("gn", "cn") else {}


def norm_stack(norm: str, shapes: list[tuple[int, int]], batch: int, **options: Any) -> Callable[[], None]:
    """Return a function that runs forward and backward of these layers, each on an input of its own."""
    factory, device = norm_factory(norm, **options), pick_device("auto")
    layers = [factory(channels, spatial=(side, side)).to(device) for channels, side in shapes]
    factory.shared.to(device)
    for task in range(TASKS):
        factory.shared.begin_task(n_classes=task + 1)
    parameters = [p for module in (*layers, factory.shared) for p in module.parameters()]
    draw = torch.Generator().manual_seed(0)
    inputs, gradients = (
        [torch.randn(batch, channels, side, side, generator=draw).to(device) for channels, side in shapes]
        for _ in range(2)
    )
    leaves = [*(tensor.requires_grad_() for tensor in inputs), *parameters]
    tasks = torch.cat([torch.full((batch // 2,), TASKS - 1), torch.arange(batch - batch // 2) % TASKS]).to(device)

    def forward_and_backward() -> None:
        weight = factory.shared.penalty_weight(1, True)
        with factory.shared.forward_pass(tasks, penalized=weight > 0) as this:
            outputs = [layer(tensor) for layer, tensor in zip(layers, inputs, strict=True)]
        roots, directions = outputs, gradients
        if weight:
            penalty = weight * this.report.penalty
            roots, directions = [*outputs, penalty], [*gradients, torch.ones_like(penalty)]
        # `backward` would copy gradients into the leaves, which does not happen to inputs inside a network.
        torch.autograd.grad(roots, leaves, directions, allow_unused=True)

    return forward_and_backward


def random_stream(config: Config, train_size: int, test_size: int) -> Stream:
    """Return random images in the form of Split CIFAR-10; the cost of a step does not depend on the pixels."""
    train_sizes, test_sizes = (train_size,) * TASKS, (test_size,) * TASKS
    mean, std, augmentation = (0.5,) * 3, (0.25,) * 3, (Crop(4), Flip())
    spec = StreamSpec("noise", "class", TASKS, CLASSES, (3, 32, 32), mean, std, augmentation, train_sizes, test_sizes)
    rng = np.random.default_rng(0)

    def split(size: int) -> Batch:
        labels = np.arange(size * TASKS) * CLASSES // (size * TASKS)
        return make_batch(rng.integers(0, 256, (len(labels), *spec.image_shape), dtype=np.uint8), labels)

    where = ranges(train_sizes), ranges(test_sizes)
    stream = TensorStream(spec, split(train_size), split(test_size), *where, config.seed, config.batch_size)
    return cast(Stream, stream.to(pick_device(config.device)))


def new_training(train_size: int = 500, test_size: int = 10, **options: Any) -> Training:
    """Return a run that has not begun, on random images."""
    config = resolve({"dataset": "seq-cifar10", **options})
    stream, device = random_stream(config, train_size, test_size), pick_device(config.device)
    return Training(
        config, stream, build_method(config, stream.spec, build_network(config, stream.spec, device), device)
    )


def training_in_second_task(**options: Any) -> Training:
    """Return a run at the beginning of its second task, with a full buffer, so that every method replays."""
    training = new_training(buffer_size=100, **options)
    method, stream = training.method, training.stream
    training.begin_task()
    first = next(iter(stream.in_order(0, 100)))
    assert method.buffer is not None, "only methods with a buffer replay"
    logits = torch.zeros(len(first), CLASSES, device=first.labels.device)
    method.buffer.add(replace(first, logits=logits), np.random.default_rng(0))
    training.cursor = Cursor(task=1, step=len(first) // training.config.batch_size)
    training.begin_task()
    method.net.train()
    return training


def next_step(training: Training) -> tuple[Batch, StepIndex]:
    """Return the first batch of the task and the index of the step that trains on it."""
    batch = next(iter(training.stream.in_order(training.cursor.task, training.config.batch_size)))
    return batch, StepIndex(training.cursor.task, training.cursor.step)


def training_step(**options: Any) -> Callable[[], object]:
    """Return a function that makes one whole step of the second task, on the same batch every time."""
    training = training_in_second_task(**options)
    batch, index = next_step(training)
    return lambda: training.method.step(batch, index)
