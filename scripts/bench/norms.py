"""norm layers and whole training steps with each norm, against BN

Forward and backward of the norm layers of ResNet-18, by shape and all 20 together, and whole steps of ER-ACE and DER++.
Ratios are medians of paired, interleaved repetitions with a 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
from typing import Any

from scripts.bench import workloads
from scripts.bench.timing import interleaved, ratio_text, ratios_to
from utils.tables import aligned

# Name in the table: norm, its options.
CANDIDATES: dict[str, tuple[str, dict[str, str]]] = {
    "bn": ("bn", {}),
    "gn": ("gn", {}),
    "cn": ("cn", {}),
    "adab2n reference": ("adab2n", {"norm_impl": "reference"}),
    "adab2n": ("adab2n", {"norm_impl": "auto"}),
}
MODELS = ("er_ace", "derpp")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=20, help="samples in a forward pass of the layers (default 20)")
    parser.add_argument("--width", type=int, default=64, help="--num_filters of the network (default 64)")
    parser.add_argument("--only", nargs="+", default=["layers", "steps"], choices=["layers", "steps"])


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    tables = {"layers": layer_ratios, "steps": step_ratios}
    numbers = {}
    for name in arguments.only:
        numbers[name] = tables[name](arguments)
        rows = [[f"{name}, width {arguments.width}: ms of bn, then ratios to it", *CANDIDATES]]
        for title, entries in numbers[name].items():
            ratios = [ratio_text(entries[candidate]) for candidate in list(CANDIDATES)[1:]]
            rows.append([title, f"{entries['bn']['ms']:.2f}", *ratios])
        print(aligned(rows), end="\n\n", flush=True)
    return numbers


def layer_ratios(arguments: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Compare the five layers of each shape, and all 20."""
    all_shapes = workloads.resnet18_shapes(arguments.width)
    stacks = {
        f"{c} x {side} x {side}": [(c, side)] * workloads.LAYERS_PER_STAGE for c, side in dict.fromkeys(all_shapes)
    }
    results = {}
    for title, shapes in {**stacks, "all 20": all_shapes}.items():
        candidates = {
            name: workloads.norm_stack(
                norm, shapes, arguments.batch, **options, **workloads.norm_options(norm, arguments.width)
            )
            for name, (norm, options) in CANDIDATES.items()
        }
        results[title] = ratios_to(interleaved(candidates, arguments.repetitions), "bn")
    return results


def step_ratios(arguments: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Compare whole steps, all norms with the same joint forward pass."""
    results = {}
    for model in MODELS:
        common = {"model": model, "num_filters": arguments.width, "replay_forward": "joint"}
        candidates = {
            name: workloads.training_step(
                norm=norm, **common, **options, **workloads.norm_options(norm, arguments.width)
            )
            for name, (norm, options) in CANDIDATES.items()
        }
        results[model] = ratios_to(interleaved(candidates, arguments.repetitions), "bn")
    return results
