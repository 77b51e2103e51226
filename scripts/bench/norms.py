"""norm layers and whole training steps with each norm, against BN

Forward and backward of the 20 norm layers of ResNet-18, and whole steps of ER-ACE and DER++, all norms with the same
joint forward pass. Ratios are medians of paired, interleaved repetitions with a 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

from scripts.bench.common import interleaved, median_ms, norm_layers, norm_options, ratio, training_step

NORMS: dict[str, dict[str, Any]] = {norm: {"norm": norm} for norm in ("bn", "gn", "cn", "adab2n")}
NORMS["adab2n reference"] = {"norm": "adab2n", "norm_impl": "reference"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=20, help="samples in a forward pass of the layers (default 20)")
    parser.add_argument("--width", type=int, default=64, help="--num_filters of the network (default 64)")


def measure(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    width = arguments.width
    subjects = {"layers": partial(norm_layers, width, arguments.batch)} | {
        model: partial(training_step, model=model, num_filters=width, replay_forward="joint")
        for model in ("er_ace", "derpp")
    }
    for name, build in subjects.items():
        candidates = {norm: build(**options, **norm_options(options["norm"], width)) for norm, options in NORMS.items()}
        seconds = interleaved(candidates, arguments.repetitions)
        ratios = {f"{norm} / bn": ratio(times, seconds["bn"]) for norm, times in seconds.items() if norm != "bn"}
        yield f"{name}, width {width}", {"bn, ms": median_ms(seconds["bn"]), **ratios}
