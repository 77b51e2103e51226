"""Measure norms, runs and compiled steps, and print tables. `--json FILE` keeps the numbers; `compare OLD NEW` compares
two such files. Subjects run on CUDA if there is a GPU."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from scripts.bench import compare, compile, kernels, norms, run
from scripts.bench.machine import description
from utils.console import print_error
from utils.errors import UsageError

SUBJECTS = {"norms": norms, "run": run, "compile": compile, "kernels": kernels}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__)
    subjects = parser.add_subparsers(dest="subject", required=True)
    for name, module in SUBJECTS.items():
        subject = subjects.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        subject.add_argument("--json", type=Path, help="write the numbers to this file")
        subject.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
        subject.add_argument("--repetitions", type=int, default=30, help="interleaved repetitions (default 30)")
        module.add_arguments(subject)
    compare.add_arguments(subjects.add_parser("compare", help=(compare.__doc__ or "").splitlines()[0]))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    try:
        if arguments.subject == "compare":
            compare.measure(arguments)
            return 0
        torch.set_num_threads(arguments.threads)
        numbers = SUBJECTS[arguments.subject].measure(arguments)
    except UsageError as error:
        print_error(error)
        return 2
    if arguments.json:
        about = {"subject": arguments.subject} | description(arguments.threads)
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"about": about, "numbers": numbers}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
