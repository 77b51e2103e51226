"""steps with channels-last activations against steps without, by width and norm

What `--channels_last auto` rests on.
"""

from __future__ import annotations

from scripts.bench import workloads
from scripts.bench.timing import against, interleaved, shown
from utils.tables import aligned


def add_arguments(parser) -> None:
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64], help="--num_filters (default 16 32 64)")
    parser.add_argument("--norms", nargs="+", default=["bn", "gn", "cn", "adab2n"], help="(default bn gn cn adab2n)")
    parser.add_argument("--model", default="er_ace", help="(default er_ace)")


def run(arguments) -> dict:
    rows, results = [["width, norm", "ms as NCHW", "channels-last / NCHW"]], {}
    for width in arguments.widths:
        for norm in arguments.norms:
            results[f"{width}, {norm}"] = found = compared(arguments, width, norm)
            rows.append([f"{width}, {norm}", f"{found['no']['ms']:.1f}", shown(found["yes"])])
    print(f"a step of {arguments.model}")
    print(aligned(rows), end="\n\n")
    return results


def compared(arguments, width: int, norm: str) -> dict:
    """Each with the forwards that its runs have."""
    options = {"model": arguments.model, "norm": norm, "num_filters": width}
    if norm in ("gn", "cn"):
        options["groups"] = width // 2  # as the paper's 32 to its 64 filters
    candidates = {
        layout: workloads.training_step(workloads.training_in_second_task(**options, channels_last=layout))
        for layout in ("no", "yes")
    }
    return against(interleaved(candidates, arguments.repetitions), "no")
