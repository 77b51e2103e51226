"""What is timed: stacks of norm layers with the shapes of ResNet-18, and whole training steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from backbone.norms import norm_factory
from models.method import Place
from utils.config.arguments import resolve
from utils.data.stream import Augmentation, Stream, StreamSpec, bounds, split_of
from utils.run.build import build_method, build_network
from utils.run.training import Cursor, Training

LAYERS_PER_STAGE = 5
LAYOUTS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}


def resnet18_shapes(width: int = 64, size: int = 32) -> list[tuple[int, int]]:
    """(channels, side) of the 20 norm layers: the stem and four stages, five layers each way of counting."""
    return [(width * 2**stage, size // 2**stage) for stage in range(4) for _ in range(LAYERS_PER_STAGE)]


def norm_stack(
    norm: str, shapes: list[tuple[int, int]], batch: int, layout: str, tasks: int = 5, **options
) -> Callable:
    """Forward and backward of these layers, with all that the norm shares across them; each has its own input."""
    factory = norm_factory(norm, **options)
    layers = [factory(channels, spatial=(side, side)) for channels, side in shapes]
    for _ in range(tasks):
        factory.shared.begin_task()
    parameters = [p for module in (*layers, factory.shared) for p in module.parameters()]
    generator = torch.Generator().manual_seed(0)

    def tensor(channels: int, side: int) -> torch.Tensor:
        return torch.randn(batch, channels, side, side, generator=generator).to(memory_format=LAYOUTS[layout])

    inputs = [tensor(*shape).requires_grad_() for shape in shapes]
    gradients = [tensor(*shape) for shape in shapes]
    of_sample = np.concatenate([np.full(batch // 2, tasks - 1), np.arange(batch - batch // 2) % tasks])

    def run() -> None:
        weight = factory.shared.begin_step(1, True)
        factory.shared.begin_forward(inputs[0], of_sample)
        outputs = [layer(a) for layer, a in zip(layers, inputs, strict=True)]
        factory.shared.end_forward()
        roots, their_gradients = outputs, gradients
        if weight:
            roots, their_gradients = [*outputs, weight * factory.shared.penalty()], [*gradients, None]
        # Not `backward`: it would copy some gradients into leaves, which no layer inside a network does.
        torch.autograd.grad(roots, [*inputs, *parameters], their_gradients, allow_unused=True)

    return run


def synthetic_stream(spec: StreamSpec) -> Stream:
    """Noise with the form of a data set; what a step costs does not depend on the pixels."""
    rng = np.random.default_rng(0)

    def split(sizes):
        labels = np.arange(sum(sizes)) * spec.n_classes // sum(sizes)
        return split_of(rng.integers(0, 256, (len(labels), *spec.image_shape), dtype=np.uint8), labels)

    return Stream(
        spec, split(spec.train_sizes), split(spec.test_sizes), bounds(spec.train_sizes), bounds(spec.test_sizes)
    )


def cifar_like_spec(per_class: int = 250) -> StreamSpec:
    sizes = (2 * per_class,) * 5
    return StreamSpec(
        "noise", "class", 5, 10, (3, 32, 32), (0.5,) * 3, (0.25,) * 3, Augmentation(4, True), sizes, (10,) * 5
    )


def second_task(training: Training) -> Place:
    return Place(1, training.cursor.step)


def training_in_second_task(net: torch.nn.Module | None = None, **options) -> Training:
    """A run of which the first task is over: the buffer is full of it and every method replays."""
    config = resolve({"dataset": "seq-cifar10", "buffer_size": 100, **options})
    stream, device = synthetic_stream(cifar_like_spec()), torch.device("cpu")
    net = net or build_network(config, stream.spec, device)
    method = build_method(config, stream.spec, net, device)
    training = Training(config, stream, net, method)
    method.prepare(stream)
    training.build_optimizer()
    for task in (0, 1):
        training.begin_task(task)
    first = stream.train(0).part(0, config.buffer_size)
    logits = torch.zeros(len(first), stream.spec.n_classes)
    of_task_0, draw = np.zeros(len(first), int), np.random.default_rng(0)
    method.buffer.add(first.images, first.labels, first.labels_host, of_task_0, draw, logits)
    training.cursor = Cursor(task=1, step=len(first) // config.batch_size)
    net.train()
    return training


def training_step(training: Training) -> Callable[[], None]:
    """One whole step of a run as the loop does it, on the same batch every time."""
    batch = training.stream.train(1).part(0, training.config.batch_size)

    def run() -> None:
        training.train_step(batch)
        training.unread = 0

    return run
