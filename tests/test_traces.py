"""Released code as a test: recorded steps of it, replayed by ours.

traces/       fifteen steps of the paper's code: losses, logits, parameters, running statistics and psi
traces_tbbn/  single forward and backward passes of the layer that TBBN's authors released

All agree to 1e-9 (in fact to about 1e-14). The environment variables TRACES and TBBN_TRACES name folders with further
traces of the same form; `python -m tests.test_traces` prints how close each of the first kind comes.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from backbone.adab2n import TBBN, tasks
from backbone.network import Network
from backbone.norms import norm_factory
from models.step_runner import StepRunner
from tests import released_inputs as released
from tests.helpers import CPU, assert_close, make_samples, make_spec
from utils.config.resolve import resolve
from utils.data.stream import make_batch, move_batch
from utils.run.build import build_method, build_network
from utils.step import StepIndex


def trace_paths(folder: str, variable: str) -> list[Path]:
    """Return the traces in a folder of the tests and in the one that the variable names, if it is set."""
    folders = [Path(__file__).parent / folder, *(Path(os.environ[name]) for name in (variable,) if name in os.environ)]
    for each in folders:
        if not list(each.glob("*.json")):
            raise FileNotFoundError(f"there are no traces in {each}; check the environment variable {variable}")
    return [path for each in folders for path in sorted(each.glob("*.json"))]


FOLDER = Path(__file__).parent / "traces"
PATHS, TBBN_PATHS = trace_paths("traces", "TRACES"), trace_paths("traces_tbbn", "TBBN_TRACES")
BOUND = 1e-9
RECORDED = ("source", "size", "losses", "logits", "digests", "psi")  # all else are options of the run


class ReservoirNumbers:
    """In place of a generator: the numbers that the released code drew for the samples from `seen` on."""

    def __init__(self, seen: int):
        self.seen = seen

    def random(self, count: int) -> np.ndarray:
        return released.RESERVOIR_NUMBERS[self.seen : self.seen + count]


def replayed_run(trace: dict, device: torch.device):
    """The method of a trace with its first weights, its draws and no augmentation."""
    options = {name: value for name, value in trace.items() if name not in RECORDED}
    config = resolve({"dataset": "seq-cifar10", "dtype": "float64", "device": "cpu"} | options)
    n_classes = released.TASKS * released.CLASSES_PER_TASK
    spec = make_spec(
        n_tasks=released.TASKS, n_classes=n_classes, image_shape=(3, trace["size"], trace["size"]),
        mean=released.MEAN, std=released.STD,
    )  # fmt: skip
    net = build_network(config, spec, device)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(torch.from_numpy(released.first_weights(name, tuple(parameter.shape))))
    method = build_method(config, spec, net, device)
    buffer, add = method.buffer, method.buffer.add

    def draw(name: str, size: int, index: StepIndex) -> np.ndarray:
        which = method.draw_names.index(name)
        return released.replayed_slots(index.step, which, len(buffer), size)

    seen = []
    method.assembler.draw = draw
    buffer.add = lambda batch, _: (add(batch, ReservoirNumbers(len(seen))), seen.extend(batch.labels_host))
    return method


def replay(trace: dict, device: torch.device = CPU) -> dict:
    method, losses = replayed_run(trace, device), []
    for step, (task, images, labels) in enumerate(released.stream(trace["size"])):
        if step % len(released.SIZES) == 0:
            method.grow()
            method.begin_task(task, None)
            method.net.train()
        found = method.step(move_batch(make_batch(images, labels, task), device), StepIndex(task, step))
        losses.append(found.loss.item())
    with torch.no_grad():
        method.net.eval()
        images = torch.from_numpy(released.probe(trace["size"])).to(device)
        logits = method.predict(method.augment.normalize(images))
    tensors = {name: tensor.cpu().numpy() for name, tensor in method.net.state_dict().items()}
    found = {"losses": losses, "logits": logits.tolist()}
    found["digests"] = {name: released.digest(name, tensors[name]) for name in trace["digests"]}
    if "psi" in trace:
        found["psi"] = psi_by_layer(method.net)
    return found


def psi_by_layer(net) -> dict[str, list[float]]:
    layers = sorted((m.number, name) for name, m in net.named_modules() if hasattr(m, "running_mean"))
    table = torch.stack(list(net.norms.psi)).detach().T
    return {name: table[number].tolist() for number, name in layers}


def deviations(path: Path, device: torch.device = CPU) -> dict[str, float]:
    """The largest |ours - theirs| / max(1, |theirs|) of every kind of number."""
    trace = json.loads(path.read_text())
    found = replay(trace, device)
    worst = {}
    for kind in ("losses", "logits", "digests", "psi"):
        if kind in trace:
            assert not isinstance(trace[kind], dict) or found[kind].keys() == trace[kind].keys()
            ours, theirs = (
                np.array(list(values.values()) if isinstance(values, dict) else values)
                for values in (found[kind], trace[kind])
            )
            worst[kind] = float((np.abs(ours - theirs) / np.maximum(1, np.abs(theirs))).max())
    return worst


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_steps_are_those_of_the_released_code(path):
    worst = deviations(path)
    assert {"losses", "logits", "digests"} <= worst.keys()
    assert all(value <= BOUND for value in worst.values()), worst  # a NaN is not


def test_all_twelve_traces_are_here():
    names = {path.stem for path in FOLDER.glob("*.json")}
    assert names == {f"{m}-{n}" for m in ("er_ace", "derpp") for n in ("bn", "ln", "in", "gn", "cn", "adab2n")}


@pytest.mark.parametrize("change", ["lr", "alpha", "kappa", "lambd"])
def test_another_setting_is_noticed(change):
    trace = json.loads((FOLDER / "derpp-adab2n.json").read_text())
    found = replay(trace | {change: trace[change] * 1.001})
    assert np.abs(np.array(found["logits"]) - trace["logits"]).max() > 1e-7


# --- TBBN ------------------------------------------------------------------------------------------------------------


class OneNorm(Network):
    """A network that is nothing but a norm layer."""

    def __init__(self, factory, channels: int):
        super().__init__(factory)
        self.norm, self.classifier = factory(channels), torch.nn.Identity()

    def body(self, x):
        return self.norm(x), ()


def package_layer(trace: dict):
    """Return the package's layer, and a function that calls it as users do."""
    layer = TBBN(len(trace["weight"])).double()

    def call(x: torch.Tensor) -> torch.Tensor:
        n, before = trace["current"], trace["tasks_before"]
        with tasks([before] * n + [0] * (len(x) - n), [False] * n + [True] * (len(x) - n)):
            return layer(x)

    return layer, call


def framework_norm(trace: dict):
    """Return the layer of `--norm tbbn`, and a function that lets a step of a method with two draws call it."""
    net = OneNorm(norm_factory("tbbn"), len(trace["weight"])).double().train()
    for _ in range(trace["tasks_before"] + 1):
        net.begin_task(n_classes=2)
    runner = StepRunner(SimpleNamespace(net=net, config=SimpleNamespace(replay_forward="joint")))

    def call(x: torch.Tensor) -> torch.Tensor:
        n = trace["current"]
        parts = {"current": x[:n], "first": x[n : n + 3], "second": x[n + 3 :]}
        batches = {name: make_samples([0] * len(part), inputs=part) for name, part in parts.items() if len(part)}
        groups = runner.groups(batches, trace["tasks_before"], replayed=len(batches) > 1)
        outputs = runner.forward(batches, groups, penalized=False)
        return torch.cat([output.logits for output in outputs.values()])

    return net.norm, call


@pytest.mark.parametrize("build", [package_layer, framework_norm])
@pytest.mark.parametrize("path", TBBN_PATHS, ids=lambda path: path.stem)
def test_tbbn_is_that_of_its_authors(path, build):
    trace = json.loads(path.read_text())
    layer, call = build(trace)
    layer.eps, layer.momentum = trace["eps"], trace["momentum"]
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(trace["weight"], dtype=torch.float64))
        layer.bias.copy_(torch.tensor(trace["bias"], dtype=torch.float64))
    for step in trace["steps"]:
        layer.zero_grad()
        x = torch.tensor(step["input"], dtype=torch.float64, requires_grad=True)
        out = call(x)
        out.backward(torch.tensor(step["upstream"], dtype=torch.float64))
        ours = {
            "output": out, "grad_input": x.grad, "grad_weight": layer.weight.grad, "grad_bias": layer.bias.grad,
            "running_mean": layer.running_mean, "running_var": layer.running_var,
        }  # fmt: skip
        for name, value in ours.items():
            assert_close(value.detach(), step[name], atol=BOUND)


if __name__ == "__main__":
    for each in PATHS:
        print(each.stem, " ".join(f"{kind} {value:.1e}" for kind, value in deviations(each).items()))
    sys.exit()
