"""What is timed: stacks of norm layers with the shapes of ResNet-18, and whole training steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from backbone.norms import norm_factory
from utils.config.arguments import Config, resolve
from utils.data.augment import Crop, Flip
from utils.data.stream import StreamSpec, TensorStream, ranges, split_of
from utils.device import pick_device
from utils.run.build import build_method, build_network
from utils.run.training import Cursor, Training
from utils.step import Batch, Place

LAYERS_PER_STAGE = 5
LAYOUTS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}


def resnet18_shapes(width: int = 64, size: int = 32) -> list[tuple[int, int]]:
    """(channels, side) of the 20 norm layers: the stem and four stages, five layers each way of counting."""
    return [(width * 2**stage, size // 2**stage) for stage in range(4) for _ in range(LAYERS_PER_STAGE)]


def norm_stack(
    norm: str, shapes: list[tuple[int, int]], batch: int, layout: str, tasks: int = 5, **options
) -> Callable:
    """Forward and backward of these layers, with all that the norm shares across them; each has its own input."""
    factory, device = norm_factory(norm, **options), pick_device("auto")
    layers = [factory(channels, spatial=(side, side)).to(device) for channels, side in shapes]
    factory.shared.to(device)
    for task in range(tasks):
        factory.shared.begin_task(n_classes=task + 1)
    parameters = [p for module in (*layers, factory.shared) for p in module.parameters()]
    generator = torch.Generator().manual_seed(0)

    def tensor(channels: int, side: int) -> torch.Tensor:
        drawn = torch.randn(batch, channels, side, side, generator=generator)
        return drawn.to(device, memory_format=LAYOUTS[layout])

    inputs = [tensor(*shape).requires_grad_() for shape in shapes]
    gradients = [tensor(*shape) for shape in shapes]
    of_sample = torch.cat([torch.full((batch // 2,), tasks - 1), torch.arange(batch - batch // 2) % tasks])
    of_sample = of_sample.to(device)

    def run() -> None:
        weight = factory.shared.penalty_weight(1, True)
        with factory.shared.forward_pass(of_sample, penalized=weight > 0) as this:
            outputs = [layer(a) for layer, a in zip(layers, inputs, strict=True)]
        roots, their_gradients = outputs, gradients
        if weight:
            roots, their_gradients = [*outputs, weight * this.report.penalty], [*gradients, None]
        # Not `backward`: it would copy some gradients into leaves, which no layer inside a network does.
        torch.autograd.grad(roots, [*inputs, *parameters], their_gradients, allow_unused=True)

    return run


def synthetic_stream(spec: StreamSpec, config: Config) -> TensorStream:
    """Noise with the form of a data set; what a step costs does not depend on the pixels."""
    rng = np.random.default_rng(0)

    def split(sizes):
        labels = np.arange(sum(sizes)) * spec.n_classes // sum(sizes)
        return split_of(rng.integers(0, 256, (len(labels), *spec.image_shape), dtype=np.uint8), labels)

    train, test = split(spec.train_sizes), split(spec.test_sizes)
    where = ranges(spec.train_sizes), ranges(spec.test_sizes)
    return TensorStream(spec, train, test, *where, config.seed, config.batch_size)


def cut(stream: TensorStream, task: int, batches: int) -> TensorStream:
    """The same stream with at most so many training batches of the task."""
    where = list(stream.train_ranges)
    start, stop = where[task]
    where[task] = (start, min(stop, start + batches * stream.batch_size))
    return replace(stream, train_ranges=tuple(where))


def cifar_like_spec(per_class: int = 250, tested: int = 10) -> StreamSpec:
    sizes = (2 * per_class,) * 5
    parts = (Crop(4), Flip())
    return StreamSpec("noise", "class", 5, 10, (3, 32, 32), (0.5,) * 3, (0.25,) * 3, parts, sizes, (tested,) * 5)


def second_task(training: Training) -> Place:
    return Place(1, training.cursor.step)


def training_in_second_task(net: torch.nn.Module | None = None, **options) -> Training:
    """A run of which the first task is over: the buffer is full of it and every method replays."""
    config = resolve({"dataset": "seq-cifar10", "buffer_size": 100, **options})
    device = pick_device(config.device)
    stream = synthetic_stream(cifar_like_spec(), config).to(device)
    net = net.to(device) if net else build_network(config, stream.spec, device)
    method = build_method(config, stream.spec, net, device)
    training = Training(config, stream, method)
    training.begin_task()
    first = next(stream.in_order(0, config.buffer_size))
    logits = torch.zeros(len(first), stream.spec.n_classes, device=device)
    method.buffer.add(replace(first, logits=logits), np.random.default_rng(0))
    training.cursor = Cursor(task=1, step=len(first) // config.batch_size)
    training.begin_task()
    net.train()
    return training


def first_batch(training: Training) -> Batch:
    """Of the second task."""
    return next(training.stream.in_order(1, training.config.batch_size))


def training_step(training: Training) -> Callable[[], object]:
    """One whole step of a run as the loop asks for it, on the same batch every time."""
    batch, place = first_batch(training), second_task(training)
    return lambda: training.method.step(batch, place)
