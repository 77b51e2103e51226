"""Results as data: finished runs as pandas DataFrames.

    from utils.results import curves, load, matrices, mean_table

    runs = load("results")                   # one row per run: every option, every metric
    losses = curves(runs[runs.seed == 0])    # one row per line of the log
    accuracies = matrices("results")         # one row per entry of an accuracy matrix
    mean_table(runs, "class_il_faa", ["dataset", "model"], "norm")    # means over seeds

Tasks and epochs count from 0, as in the records.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from utils.console import log
from utils.errors import UsageError
from utils.run.identity import unlike_options
from utils.run.observers import read_log
from utils.run.records import BadRecord, read_record

MEASURED = ("steps", "seconds", "wall_seconds", "steps_per_second")
CONDITIONS = ("device", "torch", "num_threads")
ABOUT = ("run", "status", "date", "commit")


def load(path: str | os.PathLike = "results", *, failed: bool = False) -> pd.DataFrame:
    """Return one row per finished run, sorted by name.

    Columns, in this order: run, status, date, commit; every option; metrics such as class_il_faa; steps and times;
    device, torch and num_threads, missing if a run was resumed under other ones; folder. An option that shares its name
    with another column is `option_<name>`.

    Args:
        path: A results folder, or a folder of run folders.
        failed: Whether to include failed runs, with the column `reason`.

    Example:
        >>> runs = load("results")
        >>> runs.pivot_table("class_il_faa", ["dataset", "model"], "norm")
    """
    path = Path(path)
    files = sorted(path.glob("runs/*/record.json")) or sorted(path.glob("*/record.json"))
    records = {file.parent: record for file in files if (record := _read(file))}
    chosen = {folder: record for folder, record in records.items() if failed or record["status"] == "finished"}
    if not chosen:
        hint = "use --failed (failed=True)" if records else "give the --results_path of runs"
        raise UsageError(f"{path} has no finished runs ({len(records)} failed); {hint}")
    columns = [*ABOUT, *(["reason"] if failed else [])]
    parts = zip(*(_parts(folder, record) for folder, record in chosen.items()), strict=True)
    about, metrics, measured, options = (pd.json_normalize(rows, sep="_") for rows in parts)
    about = about[columns].assign(date=pd.to_datetime(about["date"], utc=True))
    others = {*columns, *metrics, *measured}
    options = options.rename(columns=lambda name: f"option_{name}" if name in others else name)
    frame = pd.concat([about, options, metrics, measured], axis="columns").convert_dtypes()
    return frame.astype(dict.fromkeys([*metrics, *MEASURED[1:]], "float64"))


def _parts(folder: Path, record: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return what names a run, its metrics, what was measured, and its options."""
    about = {name: (record["environment"] | record).get(name) for name in (*ABOUT, "reason")}
    metrics = {setting: result["metrics"] for setting, result in record.get("results", {}).items()}
    measured = {name: record.get(name) for name in MEASURED}
    for name in CONDITIONS:
        values = {conditions.get(name) for conditions in record["conditions"]}
        measured[name] = values.pop() if len(values) == 1 else None
    options = {name: ",".join(map(str, value)) if isinstance(value, list) else value
               for name, value in record["config"].items()}  # fmt: skip
    return about, metrics, measured | {"folder": os.fspath(folder)}, options


def curves(runs: pd.DataFrame | str | os.PathLike) -> pd.DataFrame:
    """Return the lines of the runs' logs: run, step, task, epoch, loss (mean since the last line), lr, seconds."""
    rows = []
    for name, folder in _runs_in(runs):
        rows += [{"run": name} | event for event in read_log(folder) if event["event"] == "log"]
    columns = ["run", "step", "task", "epoch", "loss", "lr", "seconds"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(("loss", "lr", "seconds"), "float64"))


def matrices(runs: pd.DataFrame | str | os.PathLike) -> pd.DataFrame:
    """Return every measured accuracy (%): run, setting, after_task (the last task trained), task, accuracy."""
    rows = []
    for name, folder in _runs_in(runs):
        for setting, result in (_read(folder / "record.json") or {}).get("results", {}).items():
            first = len(result["matrix"][-1]) - len(result["matrix"])  # joint training has one row, after all tasks
            for after, row in enumerate(result["matrix"], start=first):
                rows += [(name, setting, after, task, value) for task, value in enumerate(row) if value is not None]
    return pd.DataFrame(rows, columns=["run", "setting", "after_task", "task", "accuracy"])


def mean_table(runs: pd.DataFrame, metric: str, rows: str | list[str], columns: str | list[str]) -> pd.DataFrame:
    """Return the mean of a metric over seeds, in rows and columns of options.

    Raises UsageError if runs of one cell differ in more than their seed, and names the options.

    Args:
        runs: What `load` returns, or part of it.
        metric: The column to average, such as class_il_faa.
        rows: The options of the rows.
        columns: The options of the columns.
    """
    keys = [name for names in (rows, columns) for name in ([names] if isinstance(names, str) else names)]
    identity_of = identities(runs)
    unlike: dict[str, set[str]] = {}
    for _, cell in runs.groupby(keys, dropna=False):
        for name, values in unlike_options(identity_of[run] for run in cell["run"]).items():
            unlike.setdefault(name, set()).update(values)
    if unlike:
        what = "; ".join(f"{name}: {', '.join(sorted(values))}" for name, values in unlike.items())
        raise UsageError(f"a cell would be the mean of unlike runs ({what}); select runs, or add rows or columns")
    return runs.pivot_table(metric, rows, columns)


def identities(runs: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return all that changes a run's numbers, by the names of the runs."""
    records = {name: _read(folder / "record.json") for name, folder in _runs_in(runs)}
    return {name: record["identity"] for name, record in records.items() if record}


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return read_record(file)
    except BadRecord as error:
        log.warning(f"skipped {file}: {error}")
        return None


def _runs_in(runs: pd.DataFrame | str | os.PathLike) -> Iterator[tuple[str, Path]]:
    frame = load(runs) if isinstance(runs, str | os.PathLike) else runs
    return zip(frame["run"], map(Path, frame["folder"]), strict=True)
