"""whole training steps against the bare network, and what the rest of a step costs

Steps per second of ER-ACE and DER++ as the loop does them, with log and checkpoints, beside the same network driven
bare: forward, backward and optimizer on tensors that are already there. A ratio near 1 means that the step is the
network and nothing else. With a network of one layer the framework's own cost shows, beside a straightforward
PIL-and-loop implementation of the same step.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from backbone.network import Network
from backbone.norms import norm_factory
from scripts.bench import baseline, workloads
from scripts.bench.timing import interleaved, ratio
from utils.config.loop_options import Interval
from utils.data.stream import picked
from utils.device import to_device
from utils.run.checkpoints import Checkpoints
from utils.run.observers import JsonLines
from utils.run.training import Cursor, Training
from utils.step import CURRENT, Batch, Output, forwards_of, total
from utils.tables import aligned

STEPS = 10  # of one timed repetition
SMALL_STEPS = 50  # the same with a network of one layer: as many as lie between two lines of the log


def add_arguments(parser) -> None:
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 32], help="--num_filters (default 64 32)")
    parser.add_argument("--norms", nargs="+", default=["bn", "adab2n"], help="(default bn adab2n)")
    parser.add_argument("--models", nargs="+", default=["er_ace", "derpp"], help="(default er_ace derpp)")
    parser.add_argument("--scenarios", nargs="+", default=["online"], choices=["online", "offline"])
    parser.add_argument("--layouts", nargs="+", default=["auto"], choices=["auto", "yes", "no"], help="--channels_last")


def run(arguments) -> dict:
    own = own_cost(arguments)
    return {"own_cost": own, "steps": step_table(arguments)}


# --- whole steps ------------------------------------------------------------------------------------------------------


def step_table(arguments) -> dict:
    rows = [["model, norm, width, scenario, channels-last", "steps/s", "bare", "ratio"]]
    results = {}
    for width in arguments.widths:
        for scenario in arguments.scenarios:
            for model in arguments.models:
                for norm in arguments.norms:
                    for layout in arguments.layouts:
                        title = f"{model}, {norm}, {width}, {scenario}, {layout}"
                        options = {"model": model, "norm": norm, "scenario": scenario, "channels_last": layout}
                        result = whole_against_bare(arguments, options | {"num_filters": width})
                        results[title] = result
                        spread = f"{result['ratio']:.3f} [{result['low']:.3f}, {result['high']:.3f}]"
                        rows.append([title, f"{result['steps_per_s']:.2f}", f"{result['bare_per_s']:.2f}", spread])
    print(aligned(rows), end="\n\n")
    return results


def whole_against_bare(arguments, options: dict) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        training = workloads.training_in_second_task(**options)
        loop = epoch_of_steps(training, Path(folder))
        bare = bare_steps(workloads.training_in_second_task(**options))
        repetitions = max(3, arguments.repetitions // STEPS)
        seconds = interleaved({"loop": loop, "bare": bare}, repetitions, warmup=1)
    per_second = {name: STEPS / float(np.median(times)) for name, times in seconds.items()}
    return {
        "steps_per_s": per_second["loop"],
        "bare_per_s": per_second["bare"],
        **ratio(seconds["bare"], seconds["loop"]),
    }


def epoch_of_steps(training: Training, folder: Path, steps: int = STEPS) -> Callable[[], None]:
    """Steps of the second task through the real loop, with its log and its checkpoints at the default interval."""
    training.observers = [JsonLines(folder / "metrics.jsonl")]
    training.observers[0].on_start(0, 0)
    training.checkpoints = Checkpoints(folder, {}, {}, Interval(seconds=300))
    training.stream = workloads.cut(training.stream, 1, steps)

    def run() -> None:
        training.cursor = Cursor(task=1, step=training.cursor.step)
        training.train_epoch()

    return run


def bare_steps(training: Training, steps: int = STEPS) -> Callable[[], None]:
    """The network alone: what the step forwards, with a loss, the backward and the optimizer, on tensors at hand."""
    method, place = training.method, workloads.second_task(training)
    batches = method.batches(workloads.first_batch(training), place)
    norms, optimizer = method.net.norms, method.optimizer

    def run() -> None:
        for _ in range(steps):
            weight = norms.penalty_weight(place.task, True)
            outputs = method.forward(batches, place.task, replayed=True, penalized=weight > 0)
            loss = cross_entropies(batches, outputs)
            if weight:
                loss = loss + weight * total(found.penalty for found in forwards_of(outputs))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def cross_entropies(batches: dict[str, Batch], outputs: dict[str, Output]) -> torch.Tensor:
    return total(F.cross_entropy(outputs[name].logits, batch.labels) for name, batch in batches.items())


# --- the framework's own cost -----------------------------------------------------------------------------------------


class OneLayer(Network):
    def __init__(self, inputs: int = 3 * 32 * 32):
        super().__init__(norm_factory("bn"))
        self.classifier = nn.Linear(inputs, 10)

    def body(self, x):
        return x.flatten(1), ()


def own_cost(arguments) -> dict:
    """ER-ACE with a network of one layer: 32x32 images, batches of 10, a buffer of 500."""
    options = {"model": "er_ace", "norm": "bn", "buffer_size": 500, "channels_last": "no"}
    with tempfile.TemporaryDirectory() as folder:
        training = workloads.training_in_second_task(net=OneLayer(), **options)
        data = training.stream.task_data(1)
        plain = baseline.pil_step(OneLayer(), data.images, data.labels, 10, 500)
        candidates = {
            "loop": epoch_of_steps(training, Path(folder), SMALL_STEPS),
            "bare": bare_steps(workloads.training_in_second_task(net=OneLayer(), **options), SMALL_STEPS),
            "PIL and loops": lambda: [plain() for _ in range(SMALL_STEPS)],
        }
        seconds = interleaved(candidates, max(10, arguments.repetitions))
        parts = interleaved(parts_of_a_step(training), max(100, arguments.repetitions))
    ms = {name: float(np.median(times)) * 1e3 / SMALL_STEPS for name, times in seconds.items()}
    against = ratio(seconds["loop"], seconds["PIL and loops"])
    own = ratio(seconds["loop"] - seconds["bare"], seconds["PIL and loops"])
    rows = [["ER-ACE step with a network of one layer", "ms"], *([name, f"{value:.3f}"] for name, value in ms.items())]
    rows.append(["own cost: loop without the bare network", f"{ms['loop'] - ms['bare']:.3f}"])
    compared = {"whole step against PIL and loops": against, "own cost against PIL and loops": own}
    for title, found in compared.items():
        rows.append([title, f"{found['ratio']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"])
    parts_ms = own_parts(parts, training.config.log_every)
    parts_ms["bookkeeping, all that is left"] = ms["loop"] - ms["bare"] - sum(parts_ms.values())
    rows += [[f"  of it: {name}", f"{value:.3f}"] for name, value in parts_ms.items()]
    print(aligned(rows), end="\n\n")
    return {"ms": ms, "against_pil": against, "own_against_pil": own, "parts_ms": parts_ms}


def own_parts(seconds: dict[str, np.ndarray], log_every: int) -> dict[str, float]:
    """Milliseconds a step that the bare network does not have."""
    found = {name: float(np.median(times)) * 1e3 for name, times in seconds.items()}
    found["replay draw and its augmentation"] = found.pop("all batches of a step") - found["augmentation"]
    found["loss beyond cross-entropy"] = found.pop("loss") - found.pop("cross-entropy")
    found["log, a line every 50 steps"] = found.pop("log") / log_every
    return found


def parts_of_a_step(training: Training) -> dict[str, Callable]:
    method, config = training.method, training.config
    batch, place = workloads.first_batch(training), workloads.second_task(training)
    batches = method.batches(batch, place)
    outputs = method.forward(batches, place.task, replayed=True, penalized=False)
    data, index = training.stream.task_data(1), np.arange(config.batch_size)
    index_on_device = to_device(index, data.labels.device)

    def log_line() -> None:
        training.loss_steps = list(range(config.log_every))
        training._log(config.lr)

    return {
        "data": lambda: picked(data, index, index_on_device),
        "augmentation": lambda: method.augment(batch.images, CURRENT, place.step),
        "all batches of a step": lambda: method.batches(batch, place),
        "buffer update": lambda: method.remember(batch, outputs, place),
        "loss": lambda: total(method.loss(batches, outputs, place).values()),
        "cross-entropy": lambda: cross_entropies(batches, outputs),
        "log": log_line,
        "is a checkpoint due": lambda: training.checkpoints.due(training.cursor.step),
    }
