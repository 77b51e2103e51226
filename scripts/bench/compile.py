"""compiled steps against plain steps, by width, norm and precision

Whole steps of the second task, all norms with the same joint forward pass: seconds of the first compiled step, the
compiled step's time over the plain step's, and AdaB2N's over BN's in both. `--launches` counts instead what a step
launches on an A100, from the CUDA code that Inductor generates for it; no GPU is needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

from scripts.bench.common import interleaved, median_ms, now, ratio, training_step

NORMS, WAYS = ("bn", "adab2n"), ("plain", "compiled")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64], help="--num_filters (default 16 32 64)")
    parser.add_argument("--model", default="er_ace", help="(default er_ace)")
    text = "(default: bfloat16 too if the hardware has it)"
    parser.add_argument("--amp", nargs="+", choices=["none", "bfloat16"], help=text)
    parser.add_argument("--launches", action="store_true", help="count launches on an A100 instead; needs no GPU")


def measure(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    if arguments.launches:
        from scripts.bench.cuda_code import cuda_code, launches

        for width, norm in product(arguments.widths, NORMS):
            options = {"model": arguments.model, "num_filters": width, "replay_forward": "joint"}
            yield f"{arguments.model}, {norm}, width {width}", launches(cuda_code(norm=norm, **options))
        return
    cuda = torch.cuda.is_available()
    fast = torch.cuda.is_bf16_supported(False) if cuda else torch.cpu._is_avx512_bf16_supported()
    for width, amp in product(arguments.widths, arguments.amp or ["none", *["bfloat16"] * fast]):
        options = {"model": arguments.model, "num_filters": width, "amp": amp, "replay_forward": "joint"}
        candidates, first_step = {}, {}
        for norm, way in product(NORMS, WAYS):
            candidates[norm, way] = training_step(norm=norm, compile=way == "compiled", **options)
            start = now()
            candidates[norm, way]()
            first_step[norm] = now() - start  # of the compiled step, which is the last
        seconds = interleaved(candidates, arguments.repetitions)
        values: dict[str, Any] = {"ms": {", ".join(name): median_ms(times) for name, times in seconds.items()}}
        values["compilation_s"] = first_step
        values |= {f"{n}: compiled / plain": ratio(seconds[n, "compiled"], seconds[n, "plain"]) for n in NORMS}
        values |= {f"adab2n / bn, {way}": ratio(seconds["adab2n", way], seconds["bn", way]) for way in WAYS}
        yield f"{arguments.model}, width {width}" + ("" if amp == "none" else f", {amp}"), values
