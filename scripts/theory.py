"""Print the weights of tasks in a norm layer's running statistics, the kappa that balances them, and BN's gradients.

python -m scripts.theory weights --tasks 5 --batches 10 --share 0.5 --momentum cma
python -m scripts.theory best-kappa --tasks 5 --batches 1000 --share 1/2
python -m scripts.theory gradients --samples 20 --channels 64 --positions 1024
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from fractions import Fraction

import numpy as np

from utils import console, theory
from utils.cli import Parser
from utils.config.options import integer, number
from utils.errors import UsageError
from utils.theory import ETA, SEEN

MANY_TASKS, MANY_BATCHES = 1000, 10**5
MOMENTA = ("ema", "cma", "kappa", "replay-cma")


@console.reporting_errors
def main(argv: list[str] | None = None) -> int:
    whole = Parser(prog="scripts.theory", description=__doc__)
    commands = whole.add_subparsers(dest="command", required=True, parser_class=Parser)
    weights = commands.add_parser("weights", help="each task's weight in the running statistics after the last task")
    weights.add_argument("--momentum", choices=MOMENTA, default="ema", help="of the running statistics (default ema)")
    weights.add_argument("--kappa", type=number(0, 1), default=0.7, help="of --momentum kappa (default 0.7)")
    best = commands.add_parser("best-kappa", help="the kappa with the most equal weights")
    text = f"of the current task in a batch: 0.5, 1/3, {SEEN} (1/tasks)"
    for command, print_result in ((weights, print_weights), (best, print_best_kappa)):
        command.set_defaults(print_result=print_result)
        command.add_argument("--tasks", type=integer(2, MANY_TASKS), required=True)
        command.add_argument("--batches", type=batches, required=True, help="of each task: one number, or one per task")
        command.add_argument("--share", type=share, required=True, help=text)
        command.add_argument("--eta", type=number(0, 1, exclusive=True), default=ETA, help=f"momentum (default {ETA})")
    gradients = commands.add_parser("gradients", help="gradients through BN in a random network, beside Theorem 2")
    gradients.set_defaults(print_result=print_gradients)
    for name, least, most, default in (("samples", 2, 64, 20), ("channels", 1, 512, 64), ("positions", 1, 1024, 1024)):
        gradients.add_argument(f"--{name}", type=integer(least, most), default=default, help=f"(default {default})")
    arguments = whole.parse_args(argv)
    arguments.print_result(arguments)
    return 0


def batches(text: str) -> list[int]:
    return [integer(1, MANY_BATCHES)(word) for word in text.split(",")]


def share(text: str) -> float | str:
    try:
        value = text if text == SEEN else float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        value = 0.0
    if value != SEEN and not 0 < float(value) <= 1:
        raise ArgumentTypeError(f"must be above 0 and at most 1, such as 0.5 or 1/3, or {SEEN}; got {text!r}")
    return value


def print_weights(arguments: Namespace) -> None:
    lengths = theory.task_lengths(arguments.tasks, arguments.batches)
    etas = momenta(arguments, int(lengths.sum()))
    columns = [theory.statistical_weights(etas, arguments.share, lengths, printed=printed) for printed in (False, True)]
    rows = {"task": ["as it is", "as printed"]}
    rows |= {str(task): [f"{value:.4f}" for value in pair] for task, pair in enumerate(zip(*columns, strict=True), 1)}
    rows["distance to equal"] = [f"{theory.distance(column):.4f}" for column in columns]
    rows["largest / smallest"] = [f"{column.max() / column.min():.4g}" for column in columns]
    for name, (as_it_is, printed) in rows.items():
        print(f"{name:<20}{as_it_is:>12}{printed:>12}")


def momenta(arguments: Namespace, steps: int) -> np.ndarray:
    if arguments.momentum == "kappa":
        return theory.kappa_momentum(steps, arguments.kappa, arguments.eta)
    if arguments.momentum == "replay-cma":
        if arguments.share == SEEN:
            raise UsageError(f"--momentum replay-cma needs a number as --share, not {SEEN}")
        return theory.replay_cma(steps, arguments.share)
    return theory.cma(steps) if arguments.momentum == "cma" else theory.ema(steps, arguments.eta)


def print_best_kappa(arguments: Namespace) -> None:
    lengths = theory.task_lengths(arguments.tasks, arguments.batches)
    r, eta = arguments.share, arguments.eta
    best = theory.best_kappa(lengths, r, eta)
    distance, cumulative, exponential = theory.distances([best, 0, 1], lengths, r, eta)
    print(f"kappa     {best:.4g} (weighs batches as an EMA of momentum {1 - (1 - eta) ** best:.3g} does)")
    print(f"weights   {' '.join(f'{weight:.4f}' for weight in theory.kappa_weights(best, lengths, r, eta))}")
    print(f"distance  {distance:.4f} to equal (kappa 0, CMA: {cumulative:.4f}; kappa 1, EMA: {exponential:.4f})")


def print_gradients(arguments: Namespace) -> None:
    """Theorem 2 in a random network: BN with gamma = 1, ReLU, mean over the positions, linear classifier."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    samples, channels, positions = arguments.samples, arguments.channels, arguments.positions
    before = torch.randn(samples, channels, positions, dtype=torch.float64, requires_grad=True)
    layer, classifier = nn.BatchNorm1d(channels, dtype=torch.float64), nn.Linear(channels, 10, dtype=torch.float64)
    after = layer(before)
    loss = nn.functional.cross_entropy(classifier(after.relu().mean(2)), torch.arange(samples) % 10)
    tensors = (*torch.autograd.grad(loss, (before, after)), before, after)
    at_input, at_output, inputs, normalized = (x.detach().movedim(1, 2).flatten(0, 1).numpy() for x in tensors)
    slopes = 1 / np.sqrt(inputs.var(0) + layer.eps)
    measured, rounding = (at_input**2).sum(0), 1e-12 * ((slopes * at_output) ** 2).sum(0)
    bounds = [theory.squared_gradients(at_output, normalized, slopes, printed=printed) for printed in (False, True)]
    print(f"{'squared gradient':<24}{'by autograd':>12}{'as it is':>12}{'as printed':>12}")
    print(f"{'sum over channels':<24}" + "".join(f"{values.sum():>12.4g}" for values in (measured, *bounds)))
    for name, least in (("channels where exceeded", measured), ("channels where negative", 0)):
        print(f"{name:<36}" + "".join(f"{(bound < least - rounding).sum():>12}" for bound in bounds))


if __name__ == "__main__":
    console.run_command(main)
