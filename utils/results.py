"""Results as data: finished runs as pandas DataFrames.

    from utils.results import curves, load, matrices

    runs = load("results")                   # one row per run: every option, every metric
    losses = curves(runs[runs.seed == 0])    # one row per line of the log
    accuracies = matrices("results")         # one row per entry of an accuracy matrix

Tasks and epochs count from 0, as in the records. pandas is imported by the first call, since no run needs it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utils.errors import UsageError
from utils.packages import import_or_usage_error
from utils.run.records import BadRecord, read_record

if TYPE_CHECKING:
    import pandas as pd

MEASURED = ("steps", "seconds", "wall_seconds", "steps_per_second")
CONDITIONS = ("device", "torch", "num_threads")
CURVES = ("step", "task", "epoch", "loss", "lr", "seconds")
MATRICES = ("run", "setting", "after_task", "task", "accuracy")


def load(path: str | os.PathLike = "results", *, failed: bool = False) -> pd.DataFrame:
    """Return one row per finished run, sorted by name.

    Columns, in this order: run, status, date, commit; every option; metrics such as class_il_faa; steps and times;
    device, torch and num_threads, missing if a run was resumed under other ones; folder. An option that shares its name
    with another column is `option_<name>`.

    Args:
        path: A results folder, or a folder of run folders.
        failed: Whether to include failed runs, with the column `reason`.
    """
    pd = import_or_usage_error("pandas", "utils.results")
    path = Path(path)
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder; give the --results_path of runs")
    files = sorted(path.glob("runs/*/record.json")) or sorted(path.glob("*/record.json"))
    records = {file.parent: record for file in files if (record := _read(file))}
    chosen = {folder: record for folder, record in records.items() if failed or record["status"] == "finished"}
    if not chosen:
        hint = "use --failed (failed=True)" if records else "give the --results_path of runs"
        raise UsageError(f"{path} has no finished runs ({len(records)} failed); {hint}")
    about, settings, measured, options = [], [], [], []
    for folder, record in chosen.items():
        reason = {"reason": record.get("reason")} if failed else {}
        about.append({name: record[name] for name in ("run", "status", "date")} | record["environment"] | reason)
        settings.append({setting: result["metrics"] for setting, result in record.get("results", {}).items()})
        conditions = {name: _common(record["conditions"], name) for name in CONDITIONS}
        measured.append({name: record.get(name) for name in MEASURED} | conditions | {"folder": os.fspath(folder)})
        options.append({name: ",".join(map(str, value)) if isinstance(value, list) else value
                        for name, value in record["config"].items()})  # fmt: skip
    metrics = pd.json_normalize(settings, sep="_")
    columns = ["run", "status", "date", "commit", *(["reason"] if failed else [])]
    others = {*columns, *metrics, *measured[0]}
    parts = [
        pd.DataFrame(about)[columns].assign(date=lambda frame: pd.to_datetime(frame["date"], utc=True)),
        pd.DataFrame(options).rename(columns=lambda name: f"option_{name}" if name in others else name),
        metrics,
        pd.DataFrame(measured),
    ]
    frame = pd.concat(parts, axis="columns").convert_dtypes()
    return frame.astype(dict.fromkeys([*metrics, *MEASURED[1:]], "float64"))


def curves(runs: pd.DataFrame | str | os.PathLike) -> pd.DataFrame:
    """Return the lines of the runs' logs: run, step, task, epoch, loss (mean since the last line), lr, seconds."""
    pd = import_or_usage_error("pandas", "utils.results")
    rows, without, damaged = [], 0, 0
    for name, folder in _runs_in(runs):
        log = folder / "metrics.jsonl"
        without += not log.exists()
        for line in log.read_bytes().splitlines() if log.exists() else ():
            try:
                event = json.loads(line)
                if event["event"] == "log":
                    rows.append({"run": name} | {column: event[column] for column in CURVES})
            except (ValueError, KeyError, TypeError):
                damaged += 1
    if without or damaged:
        print(f"warning: {without} runs have no metrics.jsonl; skipped {damaged} damaged lines", file=sys.stderr)
    return pd.DataFrame(rows, columns=["run", *CURVES]).astype(dict.fromkeys(("loss", "lr", "seconds"), "float64"))


def matrices(runs: pd.DataFrame | str | os.PathLike) -> pd.DataFrame:
    """Return every measured accuracy (%): run, setting, after_task (the last task trained), task, accuracy."""
    pd = import_or_usage_error("pandas", "utils.results")
    rows = []
    for name, folder in _runs_in(runs):
        record = _read(folder / "record.json") or {}
        for setting, result in record.get("results", {}).items():
            first = len(result["matrix"][-1]) - len(result["matrix"])  # joint training has one row, after all tasks
            for after, row in enumerate(result["matrix"], start=first):
                rows += [(name, setting, after, task, value) for task, value in enumerate(row) if value is not None]
    return pd.DataFrame(rows, columns=MATRICES)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return read_record(file)
    except BadRecord as error:
        print(f"warning: skipped {file}: {error}", file=sys.stderr)
        return None


def _runs_in(runs: pd.DataFrame | str | os.PathLike) -> Iterator[tuple[str, Path]]:
    frame = load(runs) if isinstance(runs, str | os.PathLike) else runs
    return zip(frame["run"], map(Path, frame["folder"]), strict=True)


def _common(conditions: list[dict[str, Any]], name: str) -> Any:
    values = {condition.get(name) for condition in conditions}
    return values.pop() if len(values) == 1 else None
