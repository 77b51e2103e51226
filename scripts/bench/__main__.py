"""Measure norms, runs and compiled steps, and print tables. `--json FILE` keeps the numbers; `compare OLD NEW` compares
two such files. Subjects run on CUDA if there is a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from scripts.bench import common, compare, compile, kernels, norms, run
from utils.cli import Parser
from utils.console import print_error
from utils.errors import UsageError

SUBJECTS = {"norms": norms, "run": run, "compile": compile, "kernels": kernels}


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="scripts.bench", description=__doc__)
    subjects = parser.add_subparsers(dest="subject", required=True, parser_class=Parser)
    for name, module in SUBJECTS.items():
        subject = subjects.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        subject.add_argument("--json", type=Path, help="write the numbers to this file")
        subject.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
        subject.add_argument("--repetitions", type=int, default=30, help="interleaved repetitions (default 30)")
        module.add_arguments(subject)
    files = subjects.add_parser("compare", help=compare.__doc__)
    files.add_argument("old", type=Path)
    files.add_argument("new", type=Path)
    arguments = parser.parse_args(argv)
    try:
        if arguments.subject == "compare":
            compare.compare(arguments.old, arguments.new)
            return 0
        torch.set_num_threads(arguments.threads)
        numbers = SUBJECTS[arguments.subject].measure(arguments)
    except UsageError as error:
        print_error(error)
        return 2
    if arguments.json:
        about = {"subject": arguments.subject} | common.machine(arguments.threads)
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"about": about, "numbers": numbers}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
