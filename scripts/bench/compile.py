"""compiled steps against plain steps, by width, norm and precision

Whole steps of the second task, all norms with the same joint forward pass: seconds of the first compiled step, the
compiled step's time over the plain step's, and AdaB2N's over BN's in both.
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

from scripts.bench.common import has_bfloat16, interleaved, median_ms, now, ratio, ratio_text, training_step
from utils.tables import aligned

NORMS, WAYS = ("bn", "adab2n"), ("plain", "compiled")
RATIOS = {
    **{f"{norm}: compiled / plain": (f"{norm}, compiled", f"{norm}, plain") for norm in NORMS},
    **{f"adab2n / bn, {way}": (f"adab2n, {way}", f"bn, {way}") for way in WAYS},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64], help="--num_filters (default 16 32 64)")
    parser.add_argument("--model", default="er_ace", help="(default er_ace)")
    text = "(default: bfloat16 too if the hardware has it)"
    parser.add_argument("--amp", nargs="+", choices=["none", "bfloat16"], help=text)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    results = {}
    for width, amp in product(arguments.widths, arguments.amp or ["none", *(["bfloat16"] if has_bfloat16() else [])]):
        title = f"{arguments.model}, width {width}" + ("" if amp == "none" else f", {amp}")
        options = {"model": arguments.model, "num_filters": width, "amp": amp, "replay_forward": "joint"}
        results[title] = numbers = measure_ways(options, arguments.repetitions)
        rows = [[title, ""], *([f"{name}, ms", f"{value:.1f}"] for name, value in numbers["ms"].items())]
        rows += [[f"{norm}: first compiled step, s", f"{numbers['compilation_s'][norm]:.0f}"] for norm in NORMS]
        rows += [[name, ratio_text(numbers[name])] for name in RATIOS]
        print(aligned(rows), end="\n\n", flush=True)
    return results


def measure_ways(options: dict[str, Any], repetitions: int) -> dict[str, Any]:
    candidates, first_step = {}, {}
    for norm, way in product(NORMS, WAYS):
        name = f"{norm}, {way}"
        candidates[name] = training_step(norm=norm, compile=way == "compiled", **options)
        start = now()
        candidates[name]()
        first_step[name] = now() - start
    seconds = interleaved(candidates, repetitions)
    return {
        "ms": {name: median_ms(times) for name, times in seconds.items()},
        "compilation_s": {norm: first_step[f"{norm}, compiled"] for norm in NORMS},
        **{title: ratio(seconds[name], seconds[base]) for title, (name, base) in RATIOS.items()},
    }
