"""a whole run against a bare loop over the same tensors, evaluations included

The run has log, checkpoints and buffer as `main.py` makes them, and random images in the form of Split CIFAR-10: five
tasks, and two test images for every step. The bare loop sends the same tensors through the network in the same order
and does nothing else but cross-entropy, backward pass and optimizer.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from scripts.bench.common import TASKS, interleaved, median_ms, new_training, norm_options, ratio
from utils.config.loop_options import Interval
from utils.config.resolve import resolve
from utils.run.checkpoints import Checkpoints
from utils.run.observers import JsonLines, Observer
from utils.step import Step

TESTS_PER_STEP = 2


class Recorder(Observer):
    """Records the calls of the network's `output`, and the labels and penalty weight of every step after its calls."""

    def __init__(self, method: Any):
        self.method, self.output, self.work = method, method.net.output, list[Any]()
        method.net.output = self.record

    def record(self, *inputs: Any, **keywords: Any) -> Any:
        self.work.append((self.method.tasks_begun, self.method.net.training, inputs, keywords))
        return self.output(*inputs, **keywords)

    def on_step(self, step: Step) -> None:
        weight = self.method.net.norms.penalty_weight(step.index.task, len(step.batches) > 1)
        self.work.append((torch.cat([batch.labels for batch in step.batches.values()]), weight))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(repetitions=5)
    parser.add_argument("--widths", type=int, nargs="+", default=[32], help="--num_filters (default 32)")
    parser.add_argument("--steps", type=int, default=100, help="steps of each of the five tasks (default 100)")
    parser.add_argument("--models", nargs="+", default=["derpp"], help="(default derpp)")
    parser.add_argument("--norms", nargs="+", default=["bn", "adab2n"], help="(default bn adab2n)")


def measure(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Time runs and bare loops in turns, each from the beginning."""
    for model, norm, width in product(arguments.models, arguments.norms, arguments.widths):
        options = {"model": model, "norm": norm, "num_filters": width} | norm_options(norm, width)
        size = arguments.steps * resolve({"dataset": "seq-cifar10", **options}).batch_size
        options |= {"train_size": size, "test_size": arguments.steps * TESTS_PER_STEP}
        training = new_training(**options)
        recorder = Recorder(training.method)
        training.observers = [recorder]
        training.run()
        candidates = {"run": partial(whole_run, options), "bare": partial(bare_loop, options, recorder.work)}
        seconds = interleaved(candidates, arguments.repetitions, warmup=0)
        steps = arguments.steps * TASKS
        values: dict[str, Any] = {"steps_per_s": steps / float(np.median(seconds["run"]))}
        values["own_ms_per_step"] = median_ms(seconds["run"] - seconds["bare"]) / steps
        yield f"{model}, {norm}, {width}", values | {"run / bare": ratio(seconds["run"], seconds["bare"])}


def whole_run(options: dict[str, Any]) -> None:
    training = new_training(**options)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        training.observers = [JsonLines(Path(folder) / "metrics.jsonl")]
        training.checkpoints = Checkpoints(Path(folder), {}, {}, Interval(seconds=300))
        training.run()


def bare_loop(options: dict[str, Any], work: list[Any]) -> None:
    """Repeat recorded work with a network and an optimizer that start from the beginning."""
    method = new_training(**options).method
    outputs: list[Any] = []
    for entry in work:
        if len(entry) == 4:
            tasks_begun, training, inputs, keywords = entry
            while method.tasks_begun < tasks_begun:
                method.grow()
            method.net.train(training)
            with torch.set_grad_enabled(training):
                output = method.net.output(*inputs, **keywords)
            outputs = [*outputs, output] if training else []
            continue
        labels, penalty_weight = entry
        loss = F.cross_entropy(torch.cat([output.logits for output in outputs]), labels)
        if penalty_weight:
            loss = loss + penalty_weight * sum(output.norms.penalty for output in outputs)
        outputs = []
        method.optimizer.zero_grad()
        loss.backward()
        method.optimizer.step()
