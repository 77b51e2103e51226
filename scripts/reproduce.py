"""Reproduce the paper: list what there is, run what is missing, report our numbers beside the published ones.

python -m scripts.reproduce list
python -m scripts.reproduce run all --preset smoke
python -m scripts.reproduce report --preset smoke
"""

from __future__ import annotations

import argparse
import shlex
import sys

from utils import console
from utils.cli import Parser
from utils.config.loop_options import folder, seeds
from utils.config.options import integer
from utils.config.plugins import given_plugins

MANY = 10_000  # workers, jobs or attempts; more is a slip
COUNT = integer(1, MANY)
IDS = (
    "table2 ... fig7, or all (default); core ..., or studies; confirm-mnist ..., or confirm; core:cifar10 for one data "
    "set; or my_study.toml"
)


@console.reporting_errors
def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    arguments = parser().parse_args(words)
    from utils.studies.subcommands import COMMANDS

    arguments.plugins = given_plugins(words)
    try:
        return COMMANDS[arguments.command](arguments)
    except KeyboardInterrupt as error:
        return getattr(error, "exit_code", 130)


def parser() -> argparse.ArgumentParser:
    whole = Parser(prog="scripts.reproduce", description=__doc__)
    commands = whole.add_subparsers(dest="command", required=True, parser_class=Parser)
    helps = {
        "list": "tables and figures with their runs: done, running, failed, missing, and the time they will take",
        "status": "every run that is not done, and its state",
        "claims": "the paper's statements, and whether the runs support them",
        "keep": "copy the records of these runs to results/measured, beside the code",
        "report": "write Markdown, LaTeX, CSV and HTML",
        "run": "run what is missing",
    }
    for name, text in helps.items():
        add_plan_arguments(commands.add_parser(name, help=text))
    commands.choices["report"].add_argument("--output", help="folder (default: RESULTS_PATH/reports/PRESET)")

    add = commands.choices["run"].add_argument
    text = "(default local); with ray and slurm, --gpus is 1 (a run asks for one) or none (the default of slurm)"
    add("--launcher", default="local", choices=["local", "ray", "slurm"], help=text)
    add_worker_arguments(commands.choices["run"])
    text = "CPU threads of every run (default 1): with another number, rounding and so the accuracies differ"
    add("--num_threads", type=COUNT, default=1, help=text)
    add("--retries", type=integer(0, MANY), default=2, help="further attempts of a run that fails (default 2)")
    add("--dry_run", "--dry-run", action="store_true", help="print the commands and stop")
    add("--ray_address", help="an existing Ray cluster (default: a local one for this sweep)")
    add("--sbatch_args", type=shlex.split, default=[], help='such as --sbatch_args="--partition=gpu --time=4:00:00"')
    add("--detach", action="store_true", help="submit to Slurm and return")

    repeat = commands.add_parser("repeat", help="train recorded runs again and compare every number")
    add = repeat.add_argument
    add("runs", nargs="*", help="names of runs (default: a random choice)")
    add("--records", default="results/measured", help="(default results/measured)")
    add("--count", type=COUNT, default=10, help="how many to choose (default 10)")
    add("--base_path", help="folder with the data, if elsewhere than the records say")
    add_plugins_argument(repeat)
    add("--results_path", type=folder, default="results/repeated", help="of the new records (default results/repeated)")
    add_worker_arguments(repeat)
    return whole


def add_plan_arguments(command: argparse.ArgumentParser, ids: str = IDS) -> None:
    add = command.add_argument
    add("ids", nargs="*", default=["all"], help=ids)
    add("--preset", default="paper", choices=["paper", "narrow", "cpu", "smoke"], help="scale (default paper)")
    add("--seeds", type=seeds, help="such as 0-4 or 0,1,2 (default: the preset's)")
    text = "how kappa and lambda are chosen: our defaults, or a grid on held-out or on test data (default fixed)"
    add("--select", default="fixed", choices=["fixed", "validation", "test"], help=text)
    add("--also", help="further norms and methods, separated by commas: rows in the tables of accuracies")
    add_plugins_argument(command)
    add("--base_path", help="folder with the data, as in main.py")
    add("--results_path", type=folder, default="results", help="folder of runs and reports (default results)")


def add_plugins_argument(command: argparse.ArgumentParser) -> None:
    text = "folders or modules of your own, as in main.py"
    command.add_argument("--plugins", nargs="+", action="extend", help=text)


def add_worker_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--workers", type=COUNT, help="runs at a time (default: what cores or GPUs allow)")
    command.add_argument("--gpus", help="GPUs to use, such as 0,1 or none (default: all)")
    command.add_argument("--jobs_per_gpu", type=COUNT, default=1, help="runs that share a GPU (default 1)")


if __name__ == "__main__":
    console.run_command(main)
