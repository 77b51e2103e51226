"""Results as data: what runs have left, as pandas DataFrames.

    from utils.results import curves, load, matrices

    runs = load("results")                   # one row a run: every option, every metric
    losses = curves(runs[runs.seed == 0])    # one row a line of its log
    accuracies = matrices("results")         # one row an entry of an accuracy matrix

Tasks and epochs count from 0, as in the records. pandas is imported by the first call: no run needs it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from utils.errors import UsageError
from utils.packages import needed
from utils.run.records import BadRecord, read_record

if TYPE_CHECKING:
    import pandas as pd

MEASURED = ("steps", "seconds", "wall_seconds", "steps_per_second")
CONDITIONS = ("device", "torch", "num_threads")
CURVES = {"run": "str", "step": "int64", "task": "int64", "epoch": "int64",
          "loss": "float64", "lr": "float64", "seconds": "float64"}  # fmt: skip
MATRICES = {"run": "str", "setting": "str", "after_task": "int64", "task": "int64", "accuracy": "float64"}


def load(path: str | os.PathLike = "results", *, failed: bool = False) -> pd.DataFrame:
    """One row a finished run below `path`/runs, or in `path` if that holds the folders of runs itself, sorted by name.

    With `failed`, those that failed too, and why in `reason`. Columns, in this order: run, status, date, commit; every
    option; metrics such as class_il_faa; steps and times; device, torch and num_threads as they were, missing where a
    run went on under others; folder. An option that shares its name with another column is `option_<name>`.
    """
    records = {file.parent: record for file in _record_files(Path(path)) if (record := _trusted(file))}
    wanted = {folder: record for folder, record in records.items() if failed or record["status"] == "finished"}
    if not wanted and records:
        raise UsageError(f"{path} has no finished runs, only {len(records)} failed: see --failed (failed=True)")
    if not wanted:
        raise UsageError(f"{path} has no runs; give the --results_path that they were run with")
    return _frame([_row(folder, record, failed) for folder, record in wanted.items()])


def curves(runs: pd.DataFrame | str | os.PathLike) -> pd.DataFrame:
    """The lines of the runs' logs: run, step, task, epoch, loss (its mean since the line before), lr, seconds."""
    logs = [(name, _log(folder / "metrics.jsonl")) for name, folder in _runs_in(runs)]
    without = sum(log is None for _, log in logs)
    if without:
        print(f"warning: {without} of {len(logs)} runs have no metrics.jsonl, and so no curve", file=sys.stderr)
    return _long([{"run": name} | event for name, log in logs for event in log or ()], CURVES)


def matrices(runs: pd.DataFrame | str | os.PathLike) -> pd.DataFrame:
    """Every accuracy (%) that was measured: run, setting, after_task (the last one trained), task, accuracy."""
    rows = []
    for name, folder in _runs_in(runs):
        record = _trusted(folder / "record.json") or {}
        for setting, result in record.get("results", {}).items():
            first = len(result["matrix"][-1]) - len(result["matrix"])  # joint training has one row, after all tasks
            for after, row in enumerate(result["matrix"], start=first):
                rows += [{"run": name, "setting": setting, "after_task": after, "task": task, "accuracy": accuracy}
                         for task, accuracy in enumerate(row) if accuracy is not None]  # fmt: skip
    return _long(rows, MATRICES)


# --- what is read -----------------------------------------------------------------------------------------------------


def _record_files(path: Path) -> list[Path]:
    if not path.is_dir():
        raise UsageError(f"{path} is no folder; give the --results_path of runs")
    return sorted(path.glob("runs/*/record.json")) or sorted(path.glob("*/record.json"))


def _trusted(file: Path) -> dict[str, Any] | None:
    try:
        return read_record(file)
    except BadRecord as error:
        print(f"warning: {file} is left out: {error}", file=sys.stderr)
        return None


def _runs_in(runs: pd.DataFrame | str | os.PathLike) -> Iterator[tuple[str, Path]]:
    frame = load(runs) if isinstance(runs, str | os.PathLike) else runs
    return zip(frame["run"], map(Path, frame["folder"]), strict=True)


def _log(path: Path) -> list[dict[str, Any]] | None:
    """The events of training; None if there is no log. Unlike records, logs have no seal: bad lines are told."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return None
    events, damaged = [], 0
    for line in lines:
        try:
            event = json.loads(line)
            if event["event"] == "log":
                events.append({name: event[name] for name in CURVES if name != "run"})
        except (ValueError, KeyError, TypeError):
            damaged += 1
    if damaged:
        print(f"warning: {path}: {damaged} damaged lines are left out", file=sys.stderr)
    return events


# --- what becomes of it -----------------------------------------------------------------------------------------------


def _row(folder: Path, record: dict[str, Any], failed: bool) -> dict[str, dict[str, Any]]:
    """Its columns by kind. Records of failed runs have no results, steps or times."""
    about = {name: record[name] for name in ("run", "status", "date")}
    about |= {"commit": record["environment"]["commit"]} | ({"reason": record.get("reason")} if failed else {})
    metrics = {
        f"{setting}_{name}": value
        for setting, result in record.get("results", {}).items()
        for name, value in result["metrics"].items()
    }
    measured = {name: record.get(name) for name in MEASURED}
    measured |= {name: _common(record["conditions"], name) for name in CONDITIONS}
    return {
        "about": about,
        "options": record["config"],
        "metrics": metrics,
        "measured": measured | {"folder": os.fspath(folder)},
    }


def _common(conditions: list[dict[str, Any]], name: str) -> Any:
    values = {condition.get(name) for condition in conditions}
    return values.pop() if len(values) == 1 else None


def _frame(rows: list[dict[str, dict[str, Any]]]) -> pd.DataFrame:
    """Columns of a kind stand together, whichever runs have them."""
    pd = _pandas()
    names = {kind: list(dict.fromkeys(name for row in rows for name in row[kind])) for kind in rows[0]}
    others = {name for kind in names if kind != "options" for name in names[kind]}
    columns = {}
    for kind in names:
        for name in names[kind]:
            title = f"option_{name}" if kind == "options" and name in others else name
            columns[title] = _column([row[kind].get(name) for row in rows])
    return pd.DataFrame(columns | {"date": pd.to_datetime(columns["date"], utc=True)})


def _column(values: list[Any]) -> pd.Series:
    """Numbers as numbers, also where some are missing; a list as its words; what is of several kinds as text."""
    pd = _pandas()
    kinds, some_missing = {type(value) for value in values} - {NoneType}, None in values
    if kinds == {bool}:
        return pd.Series(values, dtype="boolean" if some_missing else "bool")
    if kinds == {int}:
        return pd.Series(values, dtype="Int64" if some_missing else "int64")
    if kinds <= {int, float}:  # or all are missing
        return pd.Series(values, dtype="float64")
    return pd.Series([value if value is None else _text(value) for value in values], dtype="str")


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _long(rows: list[dict[str, Any]], columns: dict[str, str]) -> pd.DataFrame:
    return _pandas().DataFrame(rows, columns=list(columns)).astype(columns)


def _pandas():
    return needed("pandas", "utils.results")
