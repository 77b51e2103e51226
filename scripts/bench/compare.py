"""compare two files that --json wrote, number by number"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from utils.errors import UsageError
from utils.tables import aligned

INTERVAL = {"ratio", "low", "high"}
NOT_COMPARED = ("commit", "load")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)


def measure(arguments: argparse.Namespace) -> None:
    old, new = read(arguments.old), read(arguments.new)
    subjects = old["about"]["subject"], new["about"]["subject"]
    if subjects[0] != subjects[1]:
        raise UsageError(f"cannot compare {subjects[0]} with {subjects[1]}; give two files of one subject")
    for difference in machine_differences(old["about"], new["about"]):
        print(f"note: {difference}")
    print(aligned([["", "old", "new", "new / old", ""], *compared(old["numbers"], new["numbers"])]))


def read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        _ = content["about"]["subject"], content["numbers"].items()
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"not a file of numbers ({path}); write one with --json") from None
    return content


def machine_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return what may explain a difference in the numbers, other than the code."""
    names = [name for name in {**old, **new} if name not in NOT_COMPARED and old.get(name) != new.get(name)]
    return [f"{name} was {old.get(name)}, is {new.get(name)}" for name in names]


def compared(old: dict[str, Any], new: dict[str, Any]) -> list[list[str]]:
    """Return a row for every number that both have; intervals that do not overlap are marked."""
    rows, before = [], {name: (value, low, high) for name, value, low, high in leaves(old)}
    for name, value, low, high in leaves(new):
        if name in before:
            old_value, old_low, old_high = before[name]
            is_apart = low > old_high or old_low > high
            quotient = f"{value / old_value:.3f}" if old_value else "-"
            rows.append([name, f"{old_value:.4g}", f"{value:.4g}", quotient, "differs" if is_apart else ""])
    return rows


def leaves(numbers: dict[str, Any], path: str = "") -> Iterator[tuple[str, float, float, float]]:
    """Yield name, value and interval of every number; a number without an interval overlaps with everything."""
    has_interval = numbers.keys() >= INTERVAL
    if has_interval:
        yield path, numbers["ratio"], numbers["low"], numbers["high"]
    for name, value in numbers.items():
        where = f"{path} / {name}" if path else name
        if isinstance(value, dict):
            yield from leaves(value, where)
        elif type(value) in (int, float) and not (has_interval and name in INTERVAL):
            yield where, value, -float("inf"), float("inf")
