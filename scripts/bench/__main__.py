"""`python -m scripts.bench SUBJECT` prints tables; `--json FILE` keeps the numbers, `compare OLD NEW` sets them side by
side. Subjects run on CUDA where there is one."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

import torch

from scripts.bench.machine import description
from utils.errors import UsageError
from utils.process import complain

SUBJECTS = (
    "norms", "step", "layout", "compile", "kernels", "whole", "memory", "startup", "checkpoint", "sweep", "busy",
    "stream", "probes",
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__)
    subjects = parser.add_subparsers(dest="subject", required=True)
    for name in SUBJECTS:
        module = importlib.import_module(f"scripts.bench.{name}")
        subject = subjects.add_parser(name, help=module.__doc__.splitlines()[0])
        subject.add_argument("--json", type=Path, help="keep the numbers, as in results/benchmarks/X.json")
        subject.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
        subject.add_argument("--repetitions", type=int, default=30, help="interleaved repetitions (default 30)")
        module.add_arguments(subject)
        subject.set_defaults(run=module.run)
    compare = importlib.import_module("scripts.bench.compare")
    compare.add_arguments(subjects.add_parser("compare", help=compare.__doc__.splitlines()[0]))
    arguments = parser.parse_args(argv)
    if arguments.subject == "compare":
        return compare.run(arguments)
    torch.set_num_threads(arguments.threads)
    try:
        numbers = arguments.run(arguments)
    except UsageError as error:
        complain(error)
        return 2
    if arguments.json:
        about = {"subject": arguments.subject} | description(arguments.threads)
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"about": about, "numbers": numbers}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
