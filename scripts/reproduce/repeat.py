"""`repeat`: records run again, each from its own configuration. Are the numbers the same to the last digit?"""

from __future__ import annotations

import random
from pathlib import Path

from scripts.reproduce.display import Display
from scripts.reproduce.launchers.local import LocalEngine, visible_gpus
from scripts.reproduce.presets import PRESETS
from scripts.reproduce.runs import Run, Runs
from scripts.reproduce.sweep import Outcome, sweep
from utils.errors import UsageError
from utils.run.records import BadRecord, made_on, read_record

NOWHERE = Path("no-records")  # what is kept is what is repeated: it does not count as done


def repeat(arguments) -> int:
    """What was interrupted goes on where it was."""
    if Path(arguments.records).resolve() == (Path(arguments.results_path) / "runs").resolve():
        raise UsageError("the new records would be the old ones; set --results_path to another folder")
    records = finished(Path(arguments.records))
    chosen = choose(list(records), arguments.runs, arguments.count, arguments.pick)
    runs = Runs(PRESETS["paper"], arguments.results_path, measured=NOWHERE)
    wanted = [again(records[name], Path(arguments.records), arguments) for name in chosen]
    outcome = carried_through([run for run in wanted if runs.record(run) is None], runs, records, arguments)
    verdicts = [told(records[run.name], runs.record(run)) for run in wanted]
    for verdict in verdicts:
        print(verdict)
    identical = sum(verdict.startswith("identical") for verdict in verdicts)
    print(f"{identical} of {len(verdicts)} identical")
    return outcome.exit_code or int(identical < len(verdicts))


# --- which ------------------------------------------------------------------------------------------------------------


def finished(folder: Path) -> dict[str, dict]:
    """Records of finished runs, by name."""
    found = {}
    for path in sorted(folder.glob("*/record.json")):
        try:
            record = read_record(path)
        except BadRecord as error:
            raise UsageError(f"{path}: {error}") from None
        if record["status"] == "finished":
            found[record["run"]] = record
    if not found:
        raise UsageError(f"{folder} has no record of a finished run; set --records")
    return found


def choose(known: list[str], names: list[str], count: int, seed: int) -> list[str]:
    """Those named, or a random choice that the seed settles."""
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"no record of a finished run is called {unknown[0]}; see the folder of --records")
    return list(dict.fromkeys(names)) or random.Random(seed).sample(known, min(count, len(known)))


# --- again ------------------------------------------------------------------------------------------------------------


def again(record: dict, folder: Path, arguments) -> Run:
    options = {"config": folder / record["run"] / "record.json", "results_path": arguments.results_path}
    options["num_threads"] = threads(record)  # no part of a run's identity, but of its bits
    if arguments.base_path and "base_path" in record["config"]:
        options["base_path"] = arguments.base_path
    place = Path(arguments.results_path) / "runs" / record["run"]
    return Run(record["run"], tuple(options.items()), place, record["steps"])


def threads(record: dict) -> int:
    return record["conditions"][0]["num_threads"]


def carried_through(wanted: list[Run], runs: Runs, records: dict[str, dict], arguments) -> Outcome:
    most = max((threads(records[run.name]) for run in wanted), default=1)
    engine = LocalEngine(arguments.workers, visible_gpus(arguments.gpus), arguments.jobs_per_gpu, most)
    expected = {run.name: records[run.name]["wall_seconds"] for run in wanted}
    display = Display(len(wanted), 0, engine.slots, expected)
    try:
        return sweep(wanted, runs, engine, retries=0, display=display)
    finally:
        display.close()
        engine.close()


def told(record: dict, new: dict | None) -> str:
    """All results and steps are compared; a difference is told by the final average accuracies."""
    if new is None:
        return f"not run    {record['run']}"
    if (record["results"], record["steps"]) == (new["results"], new["steps"]):
        return f"identical  {record['run']}: {accuracies(record)}; again {made_on(new)}"
    before, now = (f"{accuracies(one)} {made_on(one)} ({where(one)})" for one in (record, new))
    return f"differs    {record['run']}: {before}; again {now}"


def accuracies(record: dict) -> str:
    return ", ".join(f"{setting} {found['metrics']['faa']}" for setting, found in record["results"].items())


def where(record: dict) -> str:
    """On other devices, versions and threads other roundings are no surprise."""
    conditions = ((one["device"], one["num_threads"], one["torch"]) for one in record["conditions"])
    found = dict.fromkeys(conditions)
    return ", then ".join(f"{device}, {threads} threads, torch {torch}" for device, threads, torch in found)
