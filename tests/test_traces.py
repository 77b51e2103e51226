"""The authors' released code as a test: fifteen recorded steps of it, replayed by ours.

Losses, logits, parameters, running statistics and psi agree to 1e-9 (in fact to about 1e-14). The environment variable
TRACES names a folder with further traces of the same form; `python -m tests.test_traces` prints how close each comes.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import released_inputs as released
from tests.helpers import CPU, make_spec
from utils.config.resolve import resolve
from utils.data.stream import make_batch, move_batch
from utils.run.build import build_method, build_network
from utils.step import StepIndex

FOLDER = Path(__file__).parent / "traces"
FOLDERS = [FOLDER, *([Path(os.environ["TRACES"])] if os.environ.get("TRACES") else [])]
PATHS = [path for folder in FOLDERS for path in sorted(folder.glob("*.json"))]
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


if __name__ == "__main__":
    for each in PATHS:
        print(each.stem, " ".join(f"{kind} {value:.1e}" for kind, value in deviations(each).items()))
    sys.exit()
