"""Small configurations, streams and networks that several test files build on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from backbone.adab2n.c_passes import compile_error
from utils.config.registry import MODELS
from utils.config.resolve import Config, resolve
from utils.data.stream import StreamSpec, TensorStream, make_batch, ranges
from utils.run.build import build_method, build_network
from utils.run.observers import Observer
from utils.run.training import Training
from utils.step import Batch, Normalization, Output

NEEDS_COMPILER = pytest.mark.skipif(compile_error() is not None, reason=f"compiled passes: {compile_error()}")
NORM_IMPLS = ["reference", "fused", pytest.param("compiled", marks=NEEDS_COMPILER)]
CPU = torch.device("cpu")
SMALL_BACKBONES = {"mlp": {"hidden": 8}, "resnet18": {"num_filters": 4}}
SMALL_NORMS = {"gn": {"groups": 4}, "cn": {"groups": 4}}
SMALL_BUFFER = {"buffer_size": 12, "minibatch_size": 4}


def run_config(model: str = "er", norm: str = "bn", backbone: str = "mlp", **explicit) -> Config:
    """A resolved configuration of a tiny run; the data set only lends its options."""
    small = {"batch_size": 4, "lr": 0.05, "log_every": 3, "device": "cpu"}
    small |= SMALL_BACKBONES[backbone] | SMALL_NORMS.get(norm, {})
    method = MODELS.get(model).build
    if method.uses_buffer:
        small |= SMALL_BUFFER
    if "current_share" in explicit:
        del small["minibatch_size"]
    small = {name: value for name, value in small.items() if name not in method.unused_options}
    return resolve({"model": model, "norm": norm, "backbone": backbone, "dataset": "seq-cifar10"} | small | explicit)


def make_spec(setting: str = "class", **changes) -> StreamSpec:
    facts = {
        "name": "made-by-hand",
        "n_tasks": 2,
        "n_classes": 4,
        "image_shape": (3, 8, 8),
        "mean": (0.0, 0.0, 0.0),
        "std": (1.0, 1.0, 1.0),
        "augmentation": (),
        "fingerprint": "made-by-hand",
    }
    facts |= changes
    sizes = {"train_sizes": (10,) * facts["n_tasks"], "test_sizes": (6,) * facts["n_tasks"]}
    return StreamSpec(setting=setting, **(sizes | facts))


def make_stream(spec: StreamSpec, seed: int = 0, batch_size: int = 4) -> TensorStream:
    """Random images and labels; the first pixel of every image is its number within its split. `seed` makes the images
    and is that of the order in which they come."""
    rng = np.random.default_rng(seed)
    train, test = (random_split(spec, sizes, rng) for sizes in (spec.train_sizes, spec.test_sizes))
    return TensorStream(spec, train, test, ranges(spec.train_sizes), ranges(spec.test_sizes), seed, batch_size)


def random_split(spec: StreamSpec, sizes: tuple[int, ...], rng: np.random.Generator) -> Batch:
    images = rng.integers(0, 256, (sum(sizes), *spec.image_shape), dtype=np.uint8)
    images[:, :, 0, 0] = np.arange(sum(sizes))[:, None]
    labels = np.concatenate([rng.choice(spec.classes_of(task), size) for task, size in enumerate(sizes)])
    return make_batch(images, labels)


def sample_numbers(images: torch.Tensor) -> np.ndarray:
    """The numbers that `make_stream` wrote into the first pixels."""
    return images[:, 0, 0, 0].numpy().astype(int)


def build_run(config: Config, stream: TensorStream):
    """(network, method) of a configuration on a stream made by hand."""
    net = build_network(config, stream.spec, CPU)
    return net, build_method(config, stream.spec, net, CPU)


class StepRecorder(Observer):
    """Keeps what `look(step)` returns for every step."""

    def __init__(self, look):
        self.look, self.steps = look, []

    def on_step(self, step):
        self.steps.append(self.look(step))


def record_steps(config: Config, stream: TensorStream, look) -> tuple[list, object, dict]:
    """Train; return what `look` returned for every step, the method and the outcome."""
    _, method = build_run(config, stream)
    recorder = StepRecorder(look)
    outcome = Training(config, stream, method, [recorder]).run()
    return recorder.steps, method, outcome


def make_samples(labels, tasks=None, **tensors) -> Batch:
    """Return a batch with these labels and without images; the tasks are 0 by default."""
    labels = np.array(labels, dtype=np.int64)
    tasks = np.zeros_like(labels) if tasks is None else np.array(tasks, dtype=np.int64)
    return Batch(torch.empty(0), torch.from_numpy(labels), torch.from_numpy(tasks), labels, tasks, **tensors)


def make_output(logits: torch.Tensor) -> Output:
    return Output(logits, logits, (), Normalization())


def scatter_norms(net: torch.nn.Module) -> None:
    """Give running statistics and affine parameters values that show where they are used."""
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if name.endswith(("running_mean", "running_var")) or (tensor.ndim == 1 and "norm" in name):
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=noise))


def two_layers_by_hand(net, norm: str, x: torch.Tensor, weights=None, statistics=None, hats=None):
    """Logits of the two-layer network, and the statistics used: given ones, or those of the weighted batch.

    `weights` are of all layers, or a list with those of each. Normalized values, which keep their gradients, are added
    to `hats`.
    """
    used = []
    for number, (linear, layer) in enumerate(((net.linear1, net.norm1), (net.linear2, net.norm2))):
        hat = a = linear(x.flatten(1))
        if norm in ("cn", "gn"):
            hat = a = F.group_norm(a, 4)
        if norm != "gn":
            if statistics is None:
                w = torch.full((len(a),), 1 / len(a), dtype=a.dtype) if weights is None else weights
                w = (w[number] if isinstance(w, list) else w)[:, None]
                mean = (w * a).sum(0)
                used.append((mean, (w * (a - mean) ** 2).sum(0)))
            mean, var = used[number] if statistics is None else statistics[number]
            hat = (a - mean) / (var + 1e-5).sqrt()
        if hats is not None:
            hat.retain_grad()
            hats.append(hat)
        x = torch.relu(hat if layer.weight is None else hat * layer.weight + layer.bias)
    return net.classifier(x), used


def weights_of(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def assert_close(actual, expected, *, rtol: float = 0.0, atol: float = 1e-12) -> None:
    actual, expected = torch.as_tensor(actual), torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual.double(), expected, rtol=rtol, atol=atol)


def forward(method, batches: dict[str, Batch], task: int, *, replayed: bool, penalized: bool) -> dict[str, Output]:
    """Return a method's outputs of the batches in training mode."""
    groups = method.runner.groups(batches, task, replayed=replayed)
    return method.runner.forward(batches, groups, penalized=penalized)
