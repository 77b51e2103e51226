"""`python -m scripts.bench SUBJECT` prints tables; `--json FILE` keeps the numbers."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
from pathlib import Path

import torch

SUBJECTS = ("norms", "step", "memory", "startup", "checkpoint", "sweep", "busy", "stream", "probes")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__)
    subjects = parser.add_subparsers(dest="subject", required=True)
    for name in SUBJECTS:
        module = importlib.import_module(f"scripts.bench.{name}")
        subject = subjects.add_parser(name, help=module.__doc__.splitlines()[0])
        subject.add_argument("--json", type=Path, help="write the numbers to this file")
        subject.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
        subject.add_argument("--repetitions", type=int, default=30, help="interleaved repetitions (default 30)")
        module.add_arguments(subject)
        subject.set_defaults(run=module.run)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    numbers = arguments.run(arguments)
    if arguments.json:
        about = {"torch": torch.__version__, "machine": platform.machine(), "threads": arguments.threads}
        arguments.json.write_text(json.dumps({"about": about, **numbers}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
