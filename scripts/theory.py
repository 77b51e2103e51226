"""Print the weights of tasks in a norm layer's running statistics, and the kappa that balances them.

python -m scripts.theory weights --tasks 5 --batches 10 --share 0.5 --momentum cma
python -m scripts.theory best-kappa --tasks 5 --batches 1000 --share 1/2
python -m scripts.theory best-kappa --table
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from fractions import Fraction
from itertools import product

import numpy as np

from utils import console
from utils.cli import Parser
from utils.config.options import integer, number
from utils.errors import UsageError
from utils.tables import markdown_table
from utils.theory import weights as theory
from utils.theory.kappa import best_kappa, distances
from utils.theory.weights import ETA, SEEN, task_lengths

MANY_TASKS, MANY_BATCHES = 1000, 10**7
MOMENTA = {"ema": ("eta",), "cma": (), "kappa": ("eta", "kappa"), "replay-cma": ()}  # and the options of each
TABLE_TASKS, TABLE_BATCHES, TABLE_SHARES = (5, 10, 20), (100, 1000), ("2/3", "1/2", "1/3", "1/5", SEEN)


def main(argv: list[str] | None = None) -> int:
    whole = Parser(prog="scripts.theory", description=__doc__)
    commands = whole.add_subparsers(dest="command", required=True, parser_class=Parser)
    weights = commands.add_parser("weights", help="each task's weight in the running statistics after the last task")
    weights.add_argument("--momentum", choices=MOMENTA, default="ema", help="of the running statistics (default ema)")
    weights.add_argument("--kappa", type=number(0, 1), help="for --momentum kappa (default 0.7)")
    weights.add_argument("--unnormalized", action="store_true", help="as factors, with that of the initial statistics")
    best = commands.add_parser("best-kappa", help="the kappa with the most equal weights")
    best.add_argument("--table", action="store_true", help="for several numbers of tasks and batches and shares")
    for command, print_result in ((weights, print_weights), (best, print_best_kappa)):
        command.set_defaults(print_result=print_result, table=False)
        command.add_argument("--tasks", type=integer(2, MANY_TASKS))
        command.add_argument("--batches", type=batches, help="of each task: one number, or one per task, with commas")
        command.add_argument("--share", type=share, help=f"of the current task in a batch: 0.5, 1/3, {SEEN} (1/tasks)")
        command.add_argument("--eta", type=number(0, 1, exclusive=True), help=f"momentum (default {ETA})")
    arguments = whole.parse_args(argv)
    setting = (arguments.tasks, arguments.batches, arguments.share)
    try:
        if arguments.table and setting != (None, None, None):
            raise UsageError("--table has its own tasks, batches and shares; give either them or --table")
        if None in setting and not arguments.table:
            raise UsageError(f"{arguments.command} needs --tasks, --batches and --share")
        print_table(arguments) if arguments.table else arguments.print_result(arguments)
        return 0
    except UsageError as error:
        console.print_error(error)
        return 2


def batches(text: str) -> int | list[int]:
    numbers = [integer(1, MANY_BATCHES)(word) for word in text.split(",")]
    return numbers if len(numbers) > 1 else numbers[0]


def share(text: str) -> float | str:
    if text == SEEN:
        return text
    try:
        value = float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        value = 0.0
    if not 0 < value <= 1:
        raise ArgumentTypeError(f"must be above 0 and at most 1, such as 0.5 or 1/3, or {SEEN}; got {text!r}")
    return value


def print_weights(arguments: Namespace) -> None:
    lengths = task_lengths(arguments.tasks, arguments.batches)
    etas = momenta(arguments, int(lengths.sum()))
    normalized = not arguments.unnormalized
    columns = [
        theory.statistical_weights(etas, arguments.share, lengths, printed=printed, normalized=normalized)
        for printed in (False, True)
    ]
    rows = {"task": ["as it is", "as printed"]}
    rows |= {str(task): [f"{value:.4f}" for value in pair] for task, pair in enumerate(zip(*columns, strict=True), 1)}
    if arguments.unnormalized:
        rows["start"] = [f"{(1 - etas).prod():.4f}"] * 2
    rows["distance to equal"] = [f"{theory.distance(column):.4f}" for column in columns]
    rows["largest / smallest"] = [f"{theory.ratio(column):.4g}" for column in columns]
    for name, (as_it_is, printed) in rows.items():
        print(f"{name:<20}{as_it_is:>12}{printed:>12}")


def momenta(arguments: Namespace, steps: int) -> np.ndarray:
    kind, eta = arguments.momentum, arguments.eta or ETA
    if steps > MANY_BATCHES:
        raise UsageError(f"{steps} batches in all are too many; give at most {MANY_BATCHES}")
    for name in ("eta", "kappa"):
        if getattr(arguments, name) is not None and name not in MOMENTA[kind]:
            raise UsageError(f"--{name} has no effect with --momentum {kind}; remove it")
    if kind == "kappa":
        return theory.kappa_momentum(steps, 0.7 if arguments.kappa is None else arguments.kappa, eta)
    if kind == "replay-cma":
        if arguments.share == SEEN:
            raise UsageError(f"--momentum replay-cma needs a number as --share, not {SEEN}")
        return theory.replay_cma(steps, arguments.share)
    return theory.cma(steps) if kind == "cma" else theory.ema(steps, eta)


def print_best_kappa(arguments: Namespace) -> None:
    eta, lengths = arguments.eta or ETA, task_lengths(arguments.tasks, arguments.batches)
    best = best_kappa(arguments.tasks, lengths, arguments.share, eta)
    cumulative, exponential = distances([0, 1], lengths, arguments.share, eta)
    print(f"kappa     {best.kappa:.4g} (weighs batches as an EMA of momentum {1 - (1 - eta) ** best.kappa:.3g} does)")
    print(f"weights   {' '.join(f'{weight:.4f}' for weight in best.weights)}")
    print(f"distance  {best.distance:.4f} to equal (kappa 0, CMA: {cumulative:.4f}; kappa 1, EMA: {exponential:.4f})")


def print_table(arguments: Namespace) -> None:
    """Print the best kappa in Markdown; the distances are those of the longest tasks."""
    head = ["T", "r", "κ·m·T", *(f"best κ, m = {m}" for m in TABLE_BATCHES), "distance", "κ = 0 (CMA)", "κ = 1 (EMA)"]
    longest, eta, rows = TABLE_BATCHES[-1], arguments.eta or ETA, []
    for tasks, text in product(TABLE_TASKS, TABLE_SHARES):
        bests = [best_kappa(tasks, m, share(text), eta) for m in TABLE_BATCHES]
        last = bests[-1]
        ends = distances([0, 1], task_lengths(tasks, longest), share(text), eta)
        constant = f"{last.kappa * longest * tasks:.1f}" if last.kappa < 1 else "–"
        values = [f"{value:.3f}" for value in (last.distance, *ends)]
        rows.append([str(tasks), text, constant, *(f"{best.kappa:.3g}" for best in bests), *values])
    print(markdown_table(head, rows), end="")


if __name__ == "__main__":
    console.begin()
    sys.exit(console.end(main()))
