"""`repeat`: train recorded runs again, each from its own configuration, and compare every number."""

from __future__ import annotations

import os
import random
import time
import uuid
from argparse import Namespace
from pathlib import Path
from typing import Any

from utils.config.parser import parse
from utils.errors import UsageError
from utils.run.records import different_conditions, entries_of, provenance_text
from utils.studies.launchers.local import LocalEngine, visible_gpus
from utils.studies.presets import PRESETS
from utils.studies.runs import Run, Runs
from utils.studies.sweep import Display, sweep


def repeat(arguments: Namespace) -> int:
    """Train again into a new folder, so that no earlier repetition can be returned."""
    recorded = Runs(PRESETS["paper"], os.devnull, measured=Path(arguments.records))
    recorded.reject_damaged_records()
    records = {record["run"]: record for record in recorded.all_records()}
    names = choose(list(records), arguments.runs, arguments.count)
    folder = Path(arguments.results_path) / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
    runs = Runs(PRESETS["paper"], str(folder), measured=folder)  # without the records that are repeated
    conditions = {name: records[name]["conditions"][0] for name in names}
    wanted = []
    for name in names:
        options: dict[str, Any] = {"config": Path(arguments.records) / name / "record.json", "results_path": folder}
        options |= {"plugins": arguments.plugins} if arguments.plugins else {}
        # Options that change rounding or what is measured, but not the name of a run.
        chosen = {option: conditions[name].get(option) for option in ("num_threads", "deterministic", "compile")}
        chosen |= {option: records[name]["config"].get(option) for option in ("final_statistics", "late_evaluations")}
        options |= {option: value for option, value in chosen.items() if value}
        if arguments.base_path and "base_path" in records[name]["config"]:
            options["base_path"] = arguments.base_path
        wanted.append(Run(name, options, folder / "runs" / name, records[name]["steps"]))
        parse(wanted[-1].command())  # a plug-in that is missing is reported before anything is trained
    threads = max(each.get("num_threads", 1) for each in conditions.values())
    engine = LocalEngine(arguments.workers, visible_gpus(arguments.gpus), arguments.jobs_per_gpu, threads)
    outcome = sweep(wanted, runs, engine, retries=0, display=Display(len(wanted), 0))
    lines = [comparison_line(records[run.name], runs.record(run)) for run in wanted]
    identical = sum(line.startswith("identical") for line in lines)
    print(*lines, f"{identical} of {len(lines)} identical", sep="\n")
    return outcome.exit_code or int(identical < len(lines))


def choose(known: list[str], names: list[str], count: int) -> list[str]:
    """Return the runs that are named, or a random choice, which is the same every time."""
    if not known:
        raise UsageError("no record of a finished run; set --records")
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"no record of a finished run is called {unknown[0]}; see the folder of --records")
    return list(dict.fromkeys(names)) or random.Random(0).sample(known, min(count, len(known)))


def comparison_line(record: dict[str, Any], repeated: dict[str, Any] | None) -> str:
    """Compare all results and steps; show a difference by the final average accuracies."""
    if repeated is None:
        return f"not run    {record['run']}"
    same = (record["results"], record["steps"]) == (entries_of(record, repeated)["results"], repeated["steps"])
    line = f"{'identical' if same else 'differs':9}  {record['run']}: {summary(record)}; repeated {summary(repeated)}"
    now = repeated["conditions"][0]
    if what := "; ".join(filter(None, (different_conditions(now, before) for before in record["conditions"]))):
        line += f"; note: other conditions ({what}), which may round differently"
    return line


def summary(record: dict[str, Any]) -> str:
    accuracies = ", ".join(f"{setting} {result['metrics']['faa']}" for setting, result in record["results"].items())
    return f"{accuracies} {provenance_text(record)}"
