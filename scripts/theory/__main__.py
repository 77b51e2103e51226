"""Whose statistics does a norm layer run on? Statistical weights of tasks, and the kappa that balances them.

python -m scripts.theory weights --tasks 5 --batches 10 --share 0.5 --momentum cma
python -m scripts.theory best-kappa --tasks 5 --batches 1000 --share 1/2
python -m scripts.theory best-kappa --table
"""

from __future__ import annotations

import argparse
import sys
from itertools import product

import numpy as np

from scripts.command_line import Parser
from scripts.theory.kappa import best_kappa, distances
from scripts.theory.weights import (
    ETA,
    SEEN,
    cma,
    distance,
    ema,
    kappa_momentum,
    ratio,
    replay_cma,
    statistical_weights,
    task_lengths,
)
from utils import process
from utils.config.options import integer, number
from utils.errors import UsageError

MANY_TASKS, MANY_BATCHES = 1000, 10**7
MOMENTA = {"ema": ("eta",), "cma": (), "kappa": ("eta", "kappa"), "replay-cma": ()}  # and what each reads
TABLE_TASKS, TABLE_BATCHES, TABLE_SHARES = (5, 10, 20), (100, 1000), ("2/3", "1/2", "1/3", "1/5", SEEN)


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        print("\n".join({"weights": weights, "best-kappa": best}[arguments.command](arguments)))
        return 0
    except UsageError as error:
        process.complain(error)
        return 2
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    whole = Parser(prog="scripts.theory", description=__doc__)
    commands = whole.add_subparsers(dest="command", required=True, parser_class=Parser)
    of_tasks = commands.add_parser("weights", help="each task's weight in the running statistics after the last task")
    _setting(of_tasks)
    of_tasks.add_argument("--momentum", choices=MOMENTA, default="ema", help="of the running statistics (default ema)")
    of_tasks.add_argument("--kappa", type=number(0, 1), help="for --momentum kappa (default 0.7)")
    of_tasks.add_argument(
        "--unnormalized", action="store_true", help="as factors, beside what is left of the initial statistics"
    )
    balanced = commands.add_parser("best-kappa", help="the kappa with the most equal weights, and these")
    _setting(balanced)
    balanced.add_argument("--table", action="store_true", help="for several numbers of tasks and batches and shares")
    return whole


def _setting(command: argparse.ArgumentParser) -> None:
    command.add_argument("--tasks", type=integer(2, MANY_TASKS))
    command.add_argument("--batches", type=batches, help="of each task: one number, or as many as tasks, with commas")
    command.add_argument("--share", type=share, help="of the current task in a batch: 0.5, 1/3; seen: 1/(tasks seen)")
    command.add_argument("--eta", type=number(0, 1, exclusive=True), help=f"momentum (default {ETA})")


def batches(text: str) -> int | list[int]:
    found = [integer(1, MANY_BATCHES)(word) for word in text.split(",")]
    return found if len(found) > 1 else found[0]


def share(text: str) -> float | str:
    if text == SEEN:
        return text
    above, _, below = text.partition("/")
    try:
        found = float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        found = 0.0
    if not 0 < found <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, such as 0.5 or 1/3, or {SEEN}; got {text!r}")
    return found


def given(arguments: argparse.Namespace) -> tuple[np.ndarray, float | str]:
    """(lengths, r), once all of it is there."""
    missing = [f"--{name}" for name in ("tasks", "batches", "share") if getattr(arguments, name) is None]
    if missing:
        raise UsageError(f"{arguments.command} needs {', '.join(missing)}; see python -m scripts.theory --help")
    return task_lengths(arguments.tasks, arguments.batches), arguments.share


def eta_of(arguments: argparse.Namespace) -> float:
    return ETA if arguments.eta is None else arguments.eta


# --- weights ----------------------------------------------------------------------------------------------------------


def weights(arguments: argparse.Namespace) -> list[str]:
    lengths, r = given(arguments)
    etas = momenta(arguments, int(lengths.sum()), r)
    keep = {"normalized": not arguments.unnormalized}
    columns = [statistical_weights(etas, r, lengths, printed=printed, **keep) for printed in (False, True)]
    lines = [row("task", ["as it is", "as printed"])]
    lines += [row(str(task), map("{:.4f}".format, pair)) for task, pair in enumerate(zip(*columns, strict=True), 1)]
    if arguments.unnormalized:
        lines.append(row("start", [f"{(1 - etas).prod():.4f}"] * 2))
    lines.append(row("distance to equal", [f"{distance(found):.4f}" for found in columns]))
    return [*lines, row("largest / smallest", [f"{ratio(found):.4g}" for found in columns])]


def momenta(arguments: argparse.Namespace, steps: int, r: float | str) -> np.ndarray:
    kind, eta = arguments.momentum, eta_of(arguments)
    if steps > MANY_BATCHES:
        raise UsageError(f"{steps} batches in all are too many; give at most {MANY_BATCHES}")
    for name in ("eta", "kappa"):
        if getattr(arguments, name) is not None and name not in MOMENTA[kind]:
            raise UsageError(f"--momentum {kind} has no {name}; leave --{name} out, or give another --momentum")
    if kind == "replay-cma" and r == SEEN:
        raise UsageError(f"--momentum replay-cma is for one --share of all tasks, not for {SEEN}; give a number")
    if kind == "kappa":
        return kappa_momentum(steps, 0.7 if arguments.kappa is None else arguments.kappa, eta)
    if kind == "replay-cma":
        return replay_cma(steps, r)
    return cma(steps) if kind == "cma" else ema(steps, eta)


def row(name: str, cells) -> str:
    return f"{name:<20}" + "".join(f"{cell:>12}" for cell in cells)


# --- best kappa -------------------------------------------------------------------------------------------------------


def best(arguments: argparse.Namespace) -> list[str]:
    if arguments.table:
        return table(arguments)
    (lengths, r), eta = given(arguments), eta_of(arguments)
    found = best_kappa(arguments.tasks, lengths, r, eta)
    cumulative, exponential = distances([0, 1], lengths, r, eta)
    same_ema = 1 - (1 - eta) ** found.kappa
    return [
        f"kappa     {found.kappa:.4g} (weighs batches as an EMA of momentum {same_ema:.3g} does)",
        f"weights   {' '.join(f'{weight:.4f}' for weight in found.weights)}",
        f"distance  {found.distance:.4f} to equal (kappa 0, CMA: {cumulative:.4f}; kappa 1, EMA: {exponential:.4f})",
    ]


def table(arguments: argparse.Namespace) -> list[str]:
    """In Markdown; the distances are those of the longest tasks."""
    if any(getattr(arguments, name) is not None for name in ("tasks", "batches", "share")):
        raise UsageError("--table has its own tasks, batches and shares; give either them or --table")
    titles = ["T", "r", "κ·m·T", *(f"best κ, m = {m}" for m in TABLE_BATCHES), "distance", "κ = 0 (CMA)", "κ = 1 (EMA)"]
    lines = ["| " + " | ".join(titles) + " |", "|--:" * len(titles) + "|"]
    for tasks, text in product(TABLE_TASKS, TABLE_SHARES):
        r, eta = share(text), eta_of(arguments)
        found = [best_kappa(tasks, m, r, eta) for m in TABLE_BATCHES]
        longest, last = TABLE_BATCHES[-1], found[-1]
        ends = distances([0, 1], task_lengths(tasks, longest), r, eta)
        constant = f"{last.kappa * longest * tasks:.1f}" if last.kappa < 1 else "–"
        cells = [constant, *(f"{each.kappa:.3g}" for each in found)]
        lines.append(
            f"| {tasks} | {text} | {' | '.join(cells)} | {last.distance:.3f} | {ends[0]:.3f} | {ends[1]:.3f} |"
        )
    return lines


if __name__ == "__main__":
    process.keep_streams()
    sys.exit(process.end(main()))
