"""steps with all probes on against steps with none"""

from __future__ import annotations

from collections.abc import Callable

from scripts.bench import workloads
from scripts.bench.timing import against, interleaved, shown
from utils.run.probes import PROBES
from utils.tables import aligned


def add_arguments(parser) -> None:
    parser.add_argument("--width", type=int, default=32, help="--num_filters (default 32)")
    parser.add_argument("--norms", nargs="+", default=["bn", "cn", "adab2n"], help="(default bn cn adab2n)")


def run(arguments) -> dict:
    rows, results = [["norm", "ms without", "ratio with all"]], {}
    for norm in arguments.norms:
        candidates = {name: observed_step(norm, arguments.width, which) for name, which in WHICH.items()}
        results[norm] = against(interleaved(candidates, arguments.repetitions), "none")
        rows.append([norm, f"{results[norm]['none']['ms']:.1f}", shown(results[norm]["all"])])
    print(f"a step of DER++, width {arguments.width}")
    print(aligned(rows), end="\n\n")
    return {"probes": results}


WHICH = {"none": (), "all": tuple(PROBES)}


def observed_step(norm: str, width: int, which: tuple[str, ...]) -> Callable[[], None]:
    training = workloads.training_in_second_task(model="derpp", norm=norm, num_filters=width)
    training.observers = probes = [PROBES[name](training.method) for name in which]
    step = workloads.training_step(training)

    def run() -> None:
        taken = step()
        for probe in probes:
            probe.on_step(taken)

    return run
