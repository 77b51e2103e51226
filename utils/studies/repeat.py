"""`repeat`: train recorded runs again, each from its own configuration, and compare every number."""

from __future__ import annotations

import random
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from utils.errors import UsageError
from utils.run.records import provenance_text
from utils.studies.launchers.local import LocalEngine, visible_gpus
from utils.studies.presets import PRESETS
from utils.studies.runs import Run, Runs
from utils.studies.sweep import Display, sweep


def repeat(arguments: Namespace) -> int:
    """Train again into a new folder, so that no earlier repetition can be returned."""
    folder = Path(arguments.results_path) / time.strftime("%Y%m%d-%H%M%S")
    recorded = Runs(PRESETS["paper"], str(folder), measured=Path(arguments.records))
    records = {record["run"]: record for record in recorded.all_records()}
    for text in recorded.untrusted:
        raise UsageError(text)
    names = choose(list(records), arguments.runs, arguments.count)
    runs = Runs(PRESETS["paper"], str(folder), measured=folder)  # without the records that are repeated
    threads = {name: records[name]["conditions"][0]["num_threads"] for name in names}
    wanted = []
    for name in names:
        options: dict[str, Any] = {"config": Path(arguments.records) / name / "record.json", "results_path": folder}
        options["num_threads"] = threads[name]  # which changes rounding, but not the name of a run
        if arguments.base_path and "base_path" in records[name]["config"]:
            options["base_path"] = arguments.base_path
        wanted.append(Run(name, options, folder / "runs" / name, records[name]["steps"]))
    engine = LocalEngine(arguments.workers, visible_gpus(arguments.gpus), arguments.jobs_per_gpu, max(threads.values()))
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
    same = (record["results"], record["steps"]) == (repeated["results"], repeated["steps"])
    line = f"{'identical' if same else 'differs':9}  {record['run']}: {summary(record)}; repeated {summary(repeated)}"
    if {each["device"] for each in record["conditions"]} != {each["device"] for each in repeated["conditions"]}:
        line += "; note: another device or instruction set, which rounds differently"
    return line


def summary(record: dict[str, Any]) -> str:
    accuracies = ", ".join(f"{setting} {result['metrics']['faa']}" for setting, result in record["results"].items())
    return f"{accuracies} {provenance_text(record)}"
