"""Reproduce the paper: what there is, run what is missing, report ours beside the published numbers.

python -m scripts.reproduce list
python -m scripts.reproduce run all --preset smoke
python -m scripts.reproduce report
"""

from __future__ import annotations

import argparse
import sys

from scripts.command_line import Parser
from utils import process
from utils.config.options import folder, integer, number, path
from utils.config.plugins import given_plugins
from utils.errors import UsageError


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    arguments = parser().parse_args(words)
    try:
        from scripts.reproduce.commands import COMMANDS

        if arguments.command != "work":  # whose run brings its own
            arguments.plugins = given_plugins(words)
        return COMMANDS[arguments.command](arguments)
    except (UsageError, OSError) as error:  # what the system refuses where nothing better can be said
        process.complain(error)
        return 2
    except KeyboardInterrupt:
        return 130


MANY = 10_000  # workers, jobs or attempts; more is a slip


def parser() -> argparse.ArgumentParser:
    whole = Parser(prog="scripts.reproduce", description=__doc__)
    commands = whole.add_subparsers(dest="command", required=True, parser_class=Parser)
    about(commands.add_parser("list", help="tables and figures: runs needed, done, failed, missing, hours"))
    about(commands.add_parser("status", help="every run that is not done, and what became of it"))
    report = commands.add_parser("report", help="write Markdown, LaTeX, CSV and HTML")
    about(report)
    report.add_argument("--output", type=folder, help="folder (default: RESULTS_PATH/reports/PRESET)")
    about(commands.add_parser("claims", help="the paper's statements, and what the runs say of them"))
    about(commands.add_parser("keep", help="copy the records of these runs to results/measured, beside the code"))
    run = commands.add_parser("run", help="run what is missing")
    about(run)
    run.add_argument(
        "--launcher",
        default="local",
        choices=["local", "ray", "slurm"],
        help="(default local); with ray and slurm, --gpus is 1 (a run asks for one) or none",
    )
    on_this_machine(run)
    run.add_argument(
        "--num_threads",
        type=integer(1, MANY),
        default=1,
        help="CPU threads of every run (default 1): with another number, rounding and so the accuracies differ",
    )
    run.add_argument(
        "--retries", type=integer(0, MANY), default=2, help="further attempts of a run that fails (default 2)"
    )
    run.add_argument("--dry_run", "--dry-run", action="store_true", help="say what would be run, and stop")
    run.add_argument("--ray_address", help="an existing Ray cluster (default: a local one for this sweep)")
    run.add_argument("--sbatch_args", default="", help='for Slurm: --sbatch_args="--partition=gpu --time=4:00:00"')
    run.add_argument("--detach", action="store_true", help="submit to Slurm and return")
    about_repetition(commands.add_parser("repeat", help="run kept records again and compare every number"))
    work = commands.add_parser("work", help="one run of a Slurm manifest (called by the array job)")
    work.add_argument("manifest", type=path)
    work.add_argument("index", type=int)
    return whole


def about_repetition(command: argparse.ArgumentParser) -> None:
    command.add_argument("runs", nargs="*", help="names of runs (default: a random choice)")
    command.add_argument("--records", type=folder, default="results/measured", help="(default results/measured)")
    command.add_argument("--count", type=integer(1, MANY), default=10, help="how many to choose (default 10)")
    command.add_argument("--pick", type=int, default=0, help="seed of the choice (default 0)")
    command.add_argument("--base_path", type=path, help="folder with the data, if elsewhere than the records say")
    command.add_argument(
        "--results_path", type=folder, default="results/repeated", help="for the new records (default results/repeated)"
    )
    on_this_machine(command)


def on_this_machine(command: argparse.ArgumentParser) -> None:
    command.add_argument("--workers", type=integer(1, MANY), help="runs at a time (default: what cores or GPUs allow)")
    command.add_argument("--gpus", help="GPUs to use, such as 0,1 or none (default: all)")
    command.add_argument("--jobs_per_gpu", type=integer(1, MANY), default=1, help="runs that share a GPU (default 1)")


IDS = "table2 ... fig7, or all (default); core ..., or studies; core:cifar10 for one data set; or my_study.toml"


def about(command: argparse.ArgumentParser, ids: str = IDS) -> None:
    """The arguments that say which runs a command is about."""
    command.add_argument("ids", nargs="*", default=["all"], help=ids)
    command.add_argument(
        "--preset",
        choices=["paper", "narrow", "cpu", "smoke"],
        help="at which scale (default: as in the last `run`; paper)",
    )
    command.add_argument("--seeds", help="such as 0-4 or 0,1,2 (default: the preset's)")
    command.add_argument(
        "--select",
        choices=["fixed", "validation", "first_tasks", "other", "test"],
        help="how kappa and lambda are chosen (default: as in the last `run`; fixed)",
    )
    command.add_argument("--kappa", type=number(0, 1), help="for --select fixed")
    command.add_argument("--lambd", type=number(0), help="for --select fixed")
    command.add_argument(
        "--also", help="further norms and methods, separated by commas: rows in the tables of accuracies"
    )
    command.add_argument("--plugins", nargs="+", action="extend", help="folders or modules of your own, as in main.py")
    command.add_argument("--base_path", type=path, help="folder with the data, as in main.py")
    command.add_argument(
        "--results_path", type=folder, default="results", help="folder of runs and reports (default results)"
    )


if __name__ == "__main__":
    process.begin()
    sys.exit(process.end(main()))
