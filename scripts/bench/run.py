"""a whole run against a bare loop over the same tensors, evaluations included

The run has log, checkpoints and buffer as `main.py` makes them, and random images in the form of Split CIFAR-10: five
tasks, and two test images for every step. The bare loop sends the same tensors through the network in the same order
and does nothing else but cross-entropy, backward pass and optimizer.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from scripts.bench.common import TASKS, median_ms, new_training, norm_options, now, ratio, ratio_text
from utils.config.loop_options import Interval
from utils.config.resolve import resolve
from utils.run.checkpoints import Checkpoints
from utils.run.observers import JsonLines, Observer
from utils.run.training import Training
from utils.step import Step
from utils.tables import aligned

TESTS_PER_STEP = 2


@dataclass
class Work:
    """Calls of the network's `output` in one training step, or in an evaluation, which has no labels."""

    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    task: int = -1
    penalty_weight: float = 0.0
    labels: torch.Tensor | None = None


class Recorder(Observer):
    """Keeps everything that goes through the network."""

    def __init__(self, net: Any):
        self.net, self.output, self.work = net, net.output, list[Work]()
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        net.output = self.record

    def record(self, *inputs: Any, **keywords: Any) -> Any:
        if self.net.training:
            self.calls.append((inputs, keywords))
        else:
            self.work.append(Work([(inputs, keywords)]))
        return self.output(*inputs, **keywords)

    def on_step(self, step: Step) -> None:
        weight = self.net.norms.penalty_weight(step.index.task, len(step.batches) > 1)
        labels = torch.cat([batch.labels for batch in step.batches.values()])
        self.work.append(Work(self.calls, step.index.task, weight, labels))
        self.calls = []


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(repetitions=5)
    parser.add_argument("--widths", type=int, nargs="+", default=[32], help="--num_filters (default 32)")
    parser.add_argument("--steps", type=int, default=100, help="steps of each of the five tasks (default 100)")
    parser.add_argument("--models", nargs="+", default=["derpp"], help="(default derpp)")
    parser.add_argument("--norms", nargs="+", default=["bn", "adab2n"], help="(default bn adab2n)")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    rows, results = [["model, norm, width", "steps/s", "own ms/step", "run / bare loop"]], {}
    for model, norm, width in product(arguments.models, arguments.norms, arguments.widths):
        options = {"model": model, "norm": norm, "num_filters": width} | norm_options(norm, width)
        title = f"{model}, {norm}, {width}"
        results[title] = numbers = measure_run(options, arguments.steps, arguments.repetitions)
        cells = [f"{numbers['steps_per_s']:.2f}", f"{numbers['own_ms_per_step']:.2f}"]
        rows.append([title, *cells, ratio_text(numbers["run / bare"])])
    print(aligned(rows), end="\n\n")
    return results


def measure_run(options: dict[str, Any], steps: int, repetitions: int) -> dict[str, Any]:
    """Time runs and bare loops in turns, each from the beginning."""
    train_size = steps * resolve({"dataset": "seq-cifar10", **options}).batch_size
    seconds: dict[str, list[float]] = {"record": [], "run": [], "bare": []}
    work: list[Work] = []
    for name in ["record", *["run", "bare", "bare", "run"] * repetitions][: 1 + 2 * repetitions]:
        training = new_training(train_size, steps * TESTS_PER_STEP, **options)
        with tempfile.TemporaryDirectory(dir=".") as folder:
            training.observers = [JsonLines(Path(folder) / "metrics.jsonl")]
            training.checkpoints = Checkpoints(Path(folder), {}, {}, Interval(seconds=300))
            if name == "record":
                recorder = Recorder(training.method.net)
                training.observers, work = [recorder], recorder.work
            start = now()
            if name == "bare":
                bare_loop(training, work)
            else:
                training.run()
            seconds[name].append(now() - start)
    whole, bare = np.array(seconds["run"]), np.array(seconds["bare"])
    return {
        "run_s": float(np.median(whole)),
        "bare_s": float(np.median(bare)),
        "steps_per_s": steps * TASKS / float(np.median(whole)),
        "own_ms_per_step": median_ms(whole - bare) / (steps * TASKS),
        "run / bare": ratio(whole, bare),
    }


def bare_loop(training: Training, work: list[Work]) -> None:
    """Repeat recorded work with a network and an optimizer that start from the beginning."""
    method, grown = training.method, 0
    net: Any = method.net
    for part in work:
        net.train(part.labels is not None)
        if part.labels is None:
            with torch.no_grad():
                for inputs, keywords in part.calls:
                    net.output(*inputs, **keywords)
            continue
        while grown <= part.task:
            method.grow()
            grown += 1
        outputs = [net.output(*inputs, **keywords) for inputs, keywords in part.calls]
        loss = F.cross_entropy(torch.cat([output.logits for output in outputs]), part.labels)
        if part.penalty_weight:
            loss = loss + part.penalty_weight * sum(output.norms.penalty for output in outputs)
        method.optimizer.zero_grad()
        loss.backward()
        method.optimizer.step()
