"""Measure norms, runs and compiled steps. `--json FILE` keeps the numbers; `compare OLD NEW` compares two such files.
Subjects run on CUDA if there is a GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from scripts.bench import common, compile, norms, official, run
from utils import console
from utils.cli import Parser
from utils.errors import UsageError
from utils.tables import aligned

SUBJECTS = {"norms": norms, "run": run, "compile": compile, "official": official}
NOT_COMPARED = ("commit", "load")


@console.reporting_errors
def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="scripts.bench", description=__doc__)
    subjects = parser.add_subparsers(dest="subject", required=True, parser_class=Parser)
    for name, module in SUBJECTS.items():
        subject = subjects.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        subject.add_argument("--json", type=Path, help="write the numbers to this file")
        subject.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
        subject.add_argument("--repetitions", type=int, default=30, help="interleaved repetitions (default 30)")
        module.add_arguments(subject)
    files = subjects.add_parser("compare", help="two files that --json wrote, number by number")
    files.add_argument("files", type=Path, nargs=2, metavar=("OLD", "NEW"))
    arguments = parser.parse_args(argv)
    if arguments.subject == "compare":
        compare(*map(read, arguments.files))
        return 0
    torch.set_num_threads(arguments.threads)
    about = {"subject": arguments.subject} | common.machine(arguments.threads)
    print(*(f"{name} {value}" for name, value in about.items() if value is not None), sep=", ", end="\n\n")
    numbers = {}
    for title, values in SUBJECTS[arguments.subject].measure(arguments):
        numbers[title] = values
        rows = [[name, as_text(value)] for name, value in flat(values).items()]
        print(aligned([[title, ""], *rows]), end="\n\n", flush=True)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"about": about, "numbers": numbers}, indent=1) + "\n")
    return 0


def flat(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers by full name. A ratio with its interval counts as one number."""
    result: dict[str, Any] = {}
    for name, value in numbers.items():
        inner = flat(value) if isinstance(value, dict) and "ratio" not in value else {"": value}
        result |= {f"{name} / {further}".removesuffix(" / "): number for further, number in inner.items()}
    return result


def as_text(value: Any) -> str:
    return "{ratio:.3f} [{low:.3f}, {high:.3f}]".format(**value) if isinstance(value, dict) else f"{value:.4g}"


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        content = json.loads(path.read_bytes())
        return content["about"], flat(content["numbers"])
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"not a file of numbers ({path}); write one with --json") from None


def compare(old: tuple[dict[str, Any], dict[str, Any]], new: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Print in what the machines differ, and every number that both have; ratios apart from each other are marked."""
    (about, before), (new_about, after) = old, new
    if about["subject"] != new_about["subject"]:
        raise UsageError(f"cannot compare {about['subject']} with {new_about['subject']}; give files of one subject")
    for name in {**about, **new_about}:
        if name not in NOT_COMPARED and about.get(name) != new_about.get(name):
            print(f"note: {name} was {about.get(name)}, is {new_about.get(name)}")
    rows = [["", "old", "new", "new / old", ""]]
    for name in (name for name in after if name in before):
        first, second, mark = before[name], after[name], ""
        if isinstance(first, dict):
            mark = "differs" if second["low"] > first["high"] or first["low"] > second["high"] else ""
            first, second = first["ratio"], second["ratio"]
        rows.append([name, f"{first:.4g}", f"{second:.4g}", f"{second / first:.3f}" if first else "-", mark])
    print(aligned(rows))


if __name__ == "__main__":
    console.run_command(main)
