"""Golden loss curves: some fifty steps in float64 of every norm with one method and of every method with two norms, and
of AdaB2N with every kind of group that it balances.

Four images a step, ten steps for each of the five tasks of the digits, a narrow ResNet-18. Besides the losses, which
never see running statistics, the mean square of the trained network's logits in eval mode is kept.

The tolerance is a relative 1e-7. Thread counts (1 and 2) and implementations of a norm round differently,
and training enlarges that: over all runs by up to 5e-10 (`er_ace_lider` with `bn`), mostly below 1e-12.
The rest is a margin for other processors. A change of a formula, of a random stream or of a default moves a curve by
far more.

`python -m tests.test_golden --write [MODEL ...]` replaces the curves. A change that needs it changes the results of all
runs of these models.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers import CPU
from utils.config.registry import MODELS, NORMS
from utils.config.resolve import resolve
from utils.data.stream import TensorStream, make_batch, ranges
from utils.run.build import StreamBuilder, build_method, build_network
from utils.run.observers import Observer
from utils.run.training import Training
from utils.step import Batch

FOLDER = Path(__file__).parent / "golden"
TOLERANCE = 1e-7
STEPS_PER_TASK, BATCH_SIZE, TESTED = 10, 4, 2
# Small enough that rounding does not grow to the size of the losses. Instance norm of a map that is nearly constant
# multiplies it by up to 1 / sqrt(eps) in every layer.
RATES = {"gdumb": {"maxlr": 0.003, "minlr": 3e-5, "fitting_epochs": 4}}
STEPS = {"icarl": 10 + 15 + 15 + 15 + 14}  # 20, 20, 18 and 16 exemplars join the tasks; all others have fifty
RUNS = [("er_ace", norm) for norm in sorted(NORMS.entries())]
RUNS += [(model, norm) for model in sorted(MODELS.entries()) if model != "er_ace" for norm in ("bn", "adab2n")]
GROUPS = ("class", "source", "none")


class Losses(Observer):
    def __init__(self):
        self.found: list[float] = []

    def on_log(self, event):
        self.found.append(event["loss"])


def shortened(stream: TensorStream) -> TensorStream:
    """Ten batches of every task, and a few test images; order, batches and what is trained together stay."""
    trained, n_tasks = STEPS_PER_TASK * BATCH_SIZE, stream.spec.n_tasks
    sizes, test_sizes = (trained,) * n_tasks, (TESTED,) * n_tasks
    return replace(
        stream,
        spec=replace(stream.spec, train_sizes=sizes, test_sizes=test_sizes),
        train_data=first_of_each(stream.train_data, stream.train_rows, stream.train_ranges, trained),
        test_data=first_of_each(stream.test_data, stream.test_rows, stream.test_ranges, TESTED),
        train_ranges=ranges(sizes),
        test_ranges=ranges(test_sizes),
        train_rows=None,
        test_rows=None,
    )


def first_of_each(data: Batch, rows: np.ndarray, tasks: tuple[tuple[int, int], ...], count: int) -> Batch:
    chosen = np.concatenate([rows[start : start + count] for start, _ in tasks])
    return make_batch(data.images[chosen].numpy(), data.labels_host[chosen])


def curve(model: str, norm: str, device: torch.device = CPU, **options) -> dict:
    explicit = {
        "model": model,
        "norm": norm,
        "dataset": "seq-digits",
        "num_filters": 4,
        "batch_size": BATCH_SIZE,
        "dtype": "float64",
        "device": "cpu",
        "log_every": 1,
        **RATES.get(model, {"lr": 0.003}),
    }
    if norm == "in":
        explicit["lr"] = 3e-5
    if MODELS.get(model).build.uses_buffer:
        explicit["buffer_size"] = 20
    if norm in ("gn", "cn"):
        explicit["groups"] = 4
    if norm == "brn":
        explicit["brn_warmup"] = 60  # of some ninety updates
    if norm == "adab2n":  # the defaults are chosen for accuracy, and may be chosen again
        explicit |= {"kappa": 0.7, "lambd": 1.0, "ada_t0": 0}
    config = resolve(explicit | options)
    stream = shortened(StreamBuilder(config).stream(CPU)).to(device)
    net = build_network(config, stream.spec, device)
    method = build_method(config, stream.spec, net, device)
    losses = Losses()
    Training(config, stream, method, [losses]).run()
    with torch.no_grad():
        logits = net.eval()(method.augment.normalize(stream.test_data.images))
    return {"losses": losses.found, "evaluated": logits.square().mean().item()}


def path_of(*words: str) -> Path:
    return FOLDER / f"{'-'.join(words)}.json"


def assert_is_golden(found: dict, model: str, *words: str) -> None:
    golden = json.loads(path_of(model, *words).read_text())
    assert len(found["losses"]) == len(golden["losses"]) == STEPS.get(model, 50)
    for step, (loss, expected) in enumerate(zip(found["losses"], golden["losses"], strict=True), start=1):
        assert loss == (expected and pytest.approx(expected, rel=TOLERANCE, abs=0)), f"step {step}"
    assert found["evaluated"] == pytest.approx(golden["evaluated"], rel=TOLERANCE, abs=0)


@pytest.mark.parametrize(("model", "norm"), RUNS)
def test_curve(model, norm):
    assert_is_golden(curve(model, norm), model, norm)


@pytest.mark.parametrize("groups", GROUPS)
def test_curve_of_other_groups_than_tasks(groups):
    assert_is_golden(curve("er_ace", "adab2n", balance_groups=groups), "er_ace", "adab2n", groups)


@pytest.mark.parametrize(
    ("model", "norm", "options"),
    [("er_ace", "adab2n", {"norm_impl": "reference"}), ("er", "adab2n", {"norm_impl": "fused"})],
)
def test_curve_does_not_depend_on_how_it_is_computed(model, norm, options):
    assert_is_golden(curve(model, norm, **options), model, norm)


def test_every_norm_and_every_method_has_its_curves():
    expected = {path_of(*run) for run in RUNS} | {path_of("er_ace", "adab2n", groups) for groups in GROUPS}
    assert set(FOLDER.glob("*.json")) == expected


def write(models: list[str]) -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    for model, norm in RUNS:
        if not models or model in models:
            write_curve(curve(model, norm), model, norm)
    if not models or "er_ace" in models:
        for groups in GROUPS:
            write_curve(curve("er_ace", "adab2n", balance_groups=groups), "er_ace", "adab2n", groups)


def write_curve(found: dict, *words: str) -> None:
    path_of(*words).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Golden loss curves; without --write nothing happens.")
    parser.add_argument("--write", nargs="*", metavar="MODEL", help="replace the curves of these models, or all")
    if (named := parser.parse_args().write) is not None:
        write(named)
