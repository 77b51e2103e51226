"""steps compiled against steps as they are, by width, layout, norm and precision

Whole steps of the second task, all norms under the same joint forward: how long the first compiled step takes, the
compiled step's time over the plain one's, and AdaB2N's over BN's in both. On a CPU the compiler is Inductor's C++, on
CUDA Triton with CUDA graphs.
"""

from __future__ import annotations

from scripts.bench import workloads
from scripts.bench.machine import has_bfloat16
from scripts.bench.timing import interleaved, now, ratio, shown
from utils.tables import aligned

LAYOUTS = {"NCHW": "no", "channels-last": "yes"}
NORMS = ("bn", "adab2n")


def add_arguments(parser) -> None:
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64], help="--num_filters (default 16 32 64)")
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--model", default="er_ace", help="(default er_ace)")
    parser.add_argument(
        "--amp", nargs="+", choices=["none", "bfloat16"], help="(default: bfloat16 where it is computed)"
    )


def run(arguments) -> dict:
    precisions = arguments.amp or ["none", *(["bfloat16"] if has_bfloat16() else [])]
    results = {}
    for width in arguments.widths:
        for layout in arguments.layouts:
            for amp in precisions:
                options = {"num_filters": width, "channels_last": LAYOUTS[layout], "amp": amp}
                title = f"{arguments.model}, width {width}, {layout}" + ("" if amp == "none" else f", {amp}")
                results[title] = compared(arguments, options)
                print(aligned(rows_of(title, results[title])), end="\n\n", flush=True)
    return results


def compared(arguments, options: dict) -> dict:
    candidates, first = {}, {}
    for norm in NORMS:
        for way in (False, True):
            training = workloads.training_in_second_task(
                model=arguments.model, norm=norm, replay_forward="joint", compile=way, **options
            )
            name = f"{norm}, {'compiled' if way else 'plain'}"
            candidates[name] = workloads.training_step(training)
            start = now()
            candidates[name]()
            first[name] = now() - start
    seconds = interleaved(candidates, arguments.repetitions)
    against = {
        **{f"{norm}: compiled / plain": (f"{norm}, compiled", f"{norm}, plain") for norm in NORMS},
        **{f"adab2n / bn, {way}": (f"adab2n, {way}", f"bn, {way}") for way in ("plain", "compiled")},
    }
    return {
        "ms": {name: float(sorted(times)[len(times) // 2]) * 1e3 for name, times in seconds.items()},
        "compilation_s": {norm: first[f"{norm}, compiled"] for norm in NORMS},
        **{title: ratio(seconds[one], seconds[other]) for title, (one, other) in against.items()},
    }


def rows_of(title: str, found: dict) -> list[list[str]]:
    rows = [[title, ""], *([f"{name}, ms", f"{value:.1f}"] for name, value in found["ms"].items())]
    rows += [[f"{norm}: first compiled step, s", f"{value:.0f}"] for norm, value in found["compilation_s"].items()]
    return rows + [[name, shown(value)] for name, value in found.items() if "ratio" in value]
