"""two files that --json wrote, number by number: python -m scripts.bench compare OLD NEW"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from utils.errors import UsageError
from utils.process import complain
from utils.tables import aligned

INTERVAL = ("ratio", "low", "high")
MADE_WITH = ("commit", "load")  # in which two files may differ


def add_arguments(parser) -> None:
    for name in ("old", "new"):
        parser.add_argument(name, type=Path)


def run(arguments) -> int:
    try:
        old, new = read(arguments.old), read(arguments.new)
        subjects = [one["about"]["subject"] for one in (old, new)]
        if subjects[0] != subjects[1]:
            raise UsageError(f"{arguments.old} is of {subjects[0]}, {arguments.new} of {subjects[1]}")
    except UsageError as error:
        complain(str(error))
        return 2
    for difference in differences(old["about"], new["about"]):
        print(f"note: {difference}")
    print(aligned([["", "old", "new", "new / old", ""], *compared(old["numbers"], new["numbers"])]))
    return 0


def read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
        _ = found["about"]["subject"], found["numbers"].items()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is no file of python -m scripts.bench SUBJECT --json FILE") from None
    return found


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Where two numbers may differ because of where they were measured."""
    names = [name for name in {**old, **new} if name not in MADE_WITH and old.get(name) != new.get(name)]
    return [f"{name} was {old.get(name)}, is {new.get(name)}" for name in names]


def compared(old: dict[str, Any], new: dict[str, Any]) -> list[list[str]]:
    """A row for every number that both have. Intervals that do not meet are told."""
    before, rows = dict(leaves(old)), []
    for name, value in leaves(new):
        if name not in before:
            continue
        was, is_ = (one["ratio"] if isinstance(one, dict) else one for one in (before[name], value))
        word = ""
        if isinstance(value, dict) and isinstance(before[name], dict):
            word = "" if value["low"] <= before[name]["high"] and before[name]["low"] <= value["high"] else "differs"
        rows.append([name, f"{was:.4g}", f"{is_:.4g}", f"{is_ / was:.3f}" if was else "-", word])
    return rows


def leaves(numbers: dict[str, Any], path: str = "") -> Iterator[tuple[str, float | dict[str, float]]]:
    """Numbers and intervals, with the names that lead to them."""
    if set(INTERVAL) <= numbers.keys():
        yield path or "ratio", {name: numbers[name] for name in INTERVAL}
        numbers = {name: value for name, value in numbers.items() if name not in INTERVAL}
    for name, value in numbers.items():
        where = f"{path} / {name}" if path else name
        if isinstance(value, dict):
            yield from leaves(value, where)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield where, value
