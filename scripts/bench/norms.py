"""norm layers and whole training steps with each norm, against BN

Forward and backward of the norm layers of ResNet-18, by shape and all 20 together, and whole steps of ER-ACE and DER++.
Ratios are medians of paired, interleaved repetitions with a 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from scripts.bench.common import interleaved, median_ms, norm_options, norm_stack, ratio, ratio_text, training_step
from utils.tables import aligned

CANDIDATES: dict[str, dict[str, str]] = {  # options by name in the table
    "bn": {"norm": "bn"},
    "gn": {"norm": "gn"},
    "cn": {"norm": "cn"},
    "adab2n reference": {"norm": "adab2n", "norm_impl": "reference"},
    "adab2n": {"norm": "adab2n", "norm_impl": "auto"},
}
LAYERS_PER_STAGE = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=20, help="samples in a forward pass of the layers (default 20)")
    parser.add_argument("--width", type=int, default=64, help="--num_filters of the network (default 64)")
    parser.add_argument("--only", nargs="+", default=["layers", "steps"], choices=["layers", "steps"])


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    width = arguments.width
    numbers: dict[str, dict[str, Any]] = {}
    for name in arguments.only:
        rows = [[f"{name}, width {width}: ms of bn, then ratios to it", *CANDIDATES]]
        numbers[name] = entries = {}
        for title, build in (layers(width, arguments.batch) if name == "layers" else steps(width)).items():
            candidates = {
                name: build(**options, **norm_options(options["norm"], width)) for name, options in CANDIDATES.items()
            }
            seconds = interleaved(candidates, arguments.repetitions)
            entries[title] = {
                name: {"ms": median_ms(times), **ratio(times, seconds["bn"])} for name, times in seconds.items()
            }
            ratios = [ratio_text(entries[title][candidate]) for candidate in list(CANDIDATES)[1:]]
            rows.append([title, f"{entries[title]['bn']['ms']:.2f}", *ratios])
        print(aligned(rows), end="\n\n", flush=True)
    return numbers


def layers(width: int, batch: int) -> dict[str, Callable[..., Callable[[], object]]]:
    """Return what builds the five norm layers of each stage of ResNet-18, and all 20."""
    stages = [[(width * 2**stage, 32 // 2**stage)] * LAYERS_PER_STAGE for stage in range(4)]
    stacks = {f"{shapes[0][0]} x {shapes[0][1]} x {shapes[0][1]}": shapes for shapes in stages}
    stacks["all 20"] = [shape for shapes in stages for shape in shapes]
    return {title: partial(norm_stack, shapes, batch) for title, shapes in stacks.items()}


def steps(width: int) -> dict[str, Callable[..., Callable[[], object]]]:
    """Return what builds whole steps, all norms with the same joint forward pass."""
    common = {"num_filters": width, "replay_forward": "joint"}
    return {model: partial(training_step, model=model, **common) for model in ("er_ace", "derpp")}
