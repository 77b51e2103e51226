"""compare two files that --json wrote, number by number"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from utils.errors import UsageError
from utils.tables import aligned

NOT_COMPARED = ("commit", "load")


def compare(old_path: Path, new_path: Path) -> None:
    """Print what differs between the machines, and every number that both files have."""
    (about, old), (new_about, new) = read(old_path), read(new_path)
    if about["subject"] != new_about["subject"]:
        raise UsageError(f"cannot compare {about['subject']} with {new_about['subject']}; give files of one subject")
    for name in {**about, **new_about}:
        if name not in NOT_COMPARED and about.get(name) != new_about.get(name):
            print(f"note: {name} was {about.get(name)}, is {new_about.get(name)}")
    print(aligned([["", "old", "new", "new / old", ""], *rows(old, new)]))


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        content = json.loads(path.read_bytes())
        return content["about"] | {"subject": content["about"]["subject"]}, content["numbers"]
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"not a file of numbers ({path}); write one with --json") from None


def rows(old: dict[str, Any], new: dict[str, Any]) -> list[list[str]]:
    """Return a row for every number that both have; ratios whose intervals do not overlap are marked."""
    before, after = (pd.json_normalize(numbers, sep=" / ").to_dict("records")[0] for numbers in (old, new))
    result = []
    for name, value in after.items():
        entry, _, last = str(name).rpartition(" / ")
        if name not in before or last in ("low", "high"):
            continue
        mark = ""
        if last == "ratio":
            low, high = f"{entry} / low", f"{entry} / high"
            mark = "differs" if after[low] > before[high] or before[low] > after[high] else ""
        quotient = f"{value / before[name]:.3f}" if before[name] else "-"
        result.append([str(name), f"{before[name]:.4g}", f"{value:.4g}", quotient, mark])
    return result
