"""The sub-commands of `scripts.reproduce`; `report` and `repeat` have modules of their own."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from utils import console
from utils.console import log
from utils.errors import UsageError
from utils.files import write_json
from utils.run.build import StreamBuilder
from utils.run.records import BadRecord, read_record, seal_of
from utils.studies.claims import CLAIMS, judge, words
from utils.studies.display import Display, progress_text
from utils.studies.launchers.local import LocalEngine, visible_gpus
from utils.studies.launchers.slurm import SlurmEngine
from utils.studies.repeat import repeat
from utils.studies.report_command import untrusted, write_report
from utils.studies.request import set_up
from utils.studies.runs import DONE, FAILED, MISSING, RUNNING, STOPPED, Run, Runs, expected_seconds, total_time
from utils.studies.selection import required_runs
from utils.studies.sweep import Engine, Outcome, log_tail, sweep
from utils.tables import aligned

# --- list and status --------------------------------------------------------------------------------------------------


def show_list(arguments: Namespace) -> int:
    plans, selection = set_up(arguments)
    runs = selection.runs
    expected = expected_seconds(required_runs(plans, selection)[0].values(), runs)
    width = max(len(plan.id) for plan in plans)
    groups = {f"{plan.id:{width}} {plan.title}": [plan] for plan in plans}
    groups[f"{'all':{width}} together, each run once"] = plans
    rows = [["", "runs", "done", "running", "failed", "missing", "time left"]]
    for title, group in groups.items():
        required, waiting = required_runs(group, selection)
        states = {name: runs.state(run) for name, run in required.items()}
        counts = Counter(states.values())
        counts[MISSING] += counts[STOPPED]
        numbers = [str(counts[state]) for state in (DONE, RUNNING, FAILED, MISSING)]
        time_left = total_time(expected[name] for name in required if states[name] != DONE)
        rows.append([title, f"{len(required)}{'+' if waiting else ''}", *numbers, time_left])
    seeds = ", ".join(map(str, selection.seeds))
    print(f"preset {runs.preset.name}: {runs.preset.help}; seeds {seeds}; kappa and lambda: {selection.mode}")
    print(aligned(rows))
    print("time left: of one worker, by the speed of recorded runs")
    for text in untrusted(runs):
        print(f"warning: {text}", file=sys.stderr)
    if any(row[1].endswith("+") for row in rows[1:]):
        print("+: more runs follow when the grid is finished and its winner is known")
    return 0


MAX_MISSING = 20  # names of runs that have not begun


def show_status(arguments: Namespace) -> int:
    plans, selection = set_up(arguments)
    runs = selection.runs
    required, waiting = required_runs(plans, selection)
    states = {name: runs.state(run) for name, run in required.items()}
    for name, run in required.items():
        if states[name] == RUNNING:
            print(f"running  {progress_text(run) or name}")
        elif states[name] == FAILED:
            print(f"failed   {name}; its log, {run.log}, ends\n{log_tail(run, 3)}")
        elif states[name] == STOPPED:
            print(f"stopped  {name}: resumes its checkpoint")
    missing = [name for name in required if states[name] == MISSING]
    for name in missing[:MAX_MISSING]:
        print(f"missing  {name}")
    if len(missing) > MAX_MISSING:
        print(f"missing  {len(missing) - MAX_MISSING} more; `run --dry_run` prints the commands of all")
    counts = Counter(states.values())
    print(", ".join(f"{counts[state]} {state}" for state in (DONE, RUNNING, FAILED, STOPPED, MISSING)))
    if waiting:
        print(f"{waiting} experiments wait for their kappa and lambda")
    return 0


# --- run --------------------------------------------------------------------------------------------------------------


def run_missing(arguments: Namespace) -> int:
    plans, selection = set_up(arguments)
    check_launcher_flags(arguments)
    outcome, checked = Outcome(), set[tuple[str, str]]()
    while True:
        required, waiting = required_runs(plans, selection)
        wanted = unfinished(required, selection.runs, outcome, arguments.launcher)
        expected = expected_seconds(wanted, selection.runs)
        announce(required, expected, waiting, selection.runs)
        if arguments.dry_run:
            for run in wanted:
                print(shlex.join(["python", "main.py", *run.command()]))
            return 0
        if problems := data_problems(wanted, selection.runs, checked):
            for problem in problems:
                console.print_error(problem)
            return 2
        if not wanted:
            print("nothing to do; `python -m scripts.reproduce report` writes the tables", file=sys.stderr)
            break
        latest = launch(wanted, len(required), arguments, selection.runs, expected)
        if arguments.detach:
            return 0
        outcome.done += latest.done
        outcome.failed |= latest.failed
        outcome.stopped_by = latest.stopped_by
        if latest.stopped_by or not waiting:
            break
    if outcome.stopped_by:
        print("stopped; the same command resumes the checkpoints", file=sys.stderr)
    for name, reason in outcome.failed.items():
        print(f"failed: {name}: {reason}", file=sys.stderr)
    print(f"{len(outcome.done)} runs done, {len(outcome.failed)} failed", file=sys.stderr)
    return outcome.exit_code


def unfinished(required: dict[str, Run], runs: Runs, outcome: Outcome, launcher: str) -> list[Run]:
    """Return the runs that are neither done nor failed in this sweep."""
    states = {name: runs.state(run) for name, run in required.items() if name not in outcome.failed}
    left = [name for name, state in states.items() if state != DONE]
    running = [name for name in left if states[name] == RUNNING]
    if running and launcher == "slurm":  # an allocation must not wait for another process
        print(f"{len(running)} runs are active in another process; skipped", file=sys.stderr)
        left = [name for name in left if name not in running]
    return [required[name] for name in left]


def data_problems(wanted: list[Run], runs: Runs, checked: set[tuple[str, str]]) -> list[str]:
    """Return a line for every data set of these runs that is missing or damaged.

    Each is read once, before anything starts, so that a download or a first decoding happens once too.
    """
    problems: dict[str, str] = {}
    for run in wanted:
        config = runs.config(run)
        content = (config.dataset, runs.spec(run).fingerprint)
        if content in checked:
            continue
        checked.add(content)
        try:
            StreamBuilder(config).stream(torch.device("cpu"))
        except UsageError as error:
            problems[config.dataset] = f"{config.dataset}: {error}"
    return list(problems.values())


def check_launcher_flags(arguments: Namespace) -> None:
    launcher = arguments.launcher
    for name, owner in (("ray_address", "ray"), ("sbatch_args", "slurm"), ("detach", "slurm")):
        if getattr(arguments, name) and launcher != owner:
            raise UsageError(f"--{name} is for --launcher {owner}, not {launcher}; remove it")
    try:
        shlex.split(arguments.sbatch_args)
    except ValueError as error:
        raise UsageError(f"--sbatch_args {arguments.sbatch_args!r}: {error}") from None
    if launcher == "local" and not arguments.dry_run:  # GPUs of another machine are fine in a dry run
        visible_gpus(arguments.gpus)
    if launcher == "slurm" and arguments.jobs_per_gpu > 1:
        raise UsageError("--jobs_per_gpu is for --launcher local or ray; Slurm gives every run a GPU")
    if launcher != "local" and arguments.gpus not in (None, "none", "1"):
        raise UsageError(f"--gpus {arguments.gpus}: with --launcher {launcher} it is 1 (a run asks for one) or none")


def announce(required: dict[str, Run], expected: dict[str, float | None], waiting: int, runs: Runs) -> None:
    """Print how many runs there are, how many are finished, and how long the others will take."""
    records = [record for run in required.values() if (record := runs.record(run)) is not None]
    later = f", and {waiting} experiments wait for their kappa and lambda" if waiting else ""
    print(f"{len(required)} runs, {len(records)} of them finished, {len(expected)} to run{later}", file=sys.stderr)
    if stale := [run.name for run in required.values() if runs.has_changed_code(run)]:
        log.warning(f"{len(stale)} finished runs are of code that has changed since, such as {stale[0]}; see --rerun")
    if expected:
        print(f"time of one worker by recorded runs: {total_time(expected.values())}", file=sys.stderr)


def launch(
    wanted: list[Run], total: int, arguments: Namespace, runs: Runs, expected: dict[str, float | None]
) -> Outcome:
    retries = arguments.retries
    engine: Engine
    if arguments.launcher == "slurm":
        engine, retries = slurm_engine(len(wanted), arguments), 0  # its tasks make the retries
        if arguments.detach:
            for run in wanted:
                engine.start(run.as_rerun() if runs.lacks_outcomes(run) else run)
            engine.submit()
            return Outcome()
    elif arguments.launcher == "ray":
        from utils.studies.launchers.ray import RayEngine

        on_gpu, per_gpu = arguments.gpus != "none", arguments.jobs_per_gpu
        engine = RayEngine(arguments.ray_address, arguments.workers, on_gpu, per_gpu, arguments.num_threads)
    else:
        gpus, per_gpu = visible_gpus(arguments.gpus), arguments.jobs_per_gpu
        engine = LocalEngine(arguments.workers, gpus, per_gpu, arguments.num_threads)
    display = Display(total, total - len(wanted), arguments.workers or engine.slots, expected)
    try:
        return sweep(wanted, runs, engine, retries=retries, display=display)
    finally:
        display.close()


def slurm_engine(count: int, arguments: Namespace) -> SlurmEngine:
    gpus = bool(visible_gpus(None)) if arguments.gpus is None else arguments.gpus != "none"
    if arguments.gpus is None:  # a login node may have other devices than the nodes that compute
        asked = "one GPU; --gpus none asks for none" if gpus else "no GPU; --gpus 1 asks for one"
        print(f"every run asks Slurm for {asked}", file=sys.stderr)
    return SlurmEngine(
        Path(arguments.results_path) / "slurm", count, retries=arguments.retries, at_once=arguments.workers,
        gpus=gpus, num_threads=arguments.num_threads, sbatch_args=arguments.sbatch_args,
    )  # fmt: skip


# --- claims and records that are kept ---------------------------------------------------------------------------------


def show_claims(arguments: Namespace) -> int:
    _, selection = set_up(arguments)
    for claim in CLAIMS.values():
        verdict = judge(claim, selection)
        statement, source, found, n, difference, interval, wins, cells = words(verdict)
        print(f"{found:14}{statement} ({source})")
        if verdict.cells:
            print(f"{'':14}{difference} {interval} points, n = {n}, wins {wins}, {cells} cells")
        for name, cell in verdict.fewer.items():
            print(f"{'':14}not in it: {cell.mean:+.2f} points, n = {cell.n}: {name}")
        if verdict.cells and verdict.missing:
            print(f"{'':14}no runs: {'; '.join(verdict.missing)}")
    return 0


def keep_records(arguments: Namespace) -> int:
    """Copy the records of the chosen plans, finished or failed, to results/measured; no copy is replaced."""
    plans, selection = set_up(arguments)
    runs = selection.runs
    required, _ = required_runs(plans, selection)
    kept: Counter[str] = Counter()
    for run in required.values():
        try:
            record = read_record(run.folder / "record.json")
        except BadRecord as error:
            print(f"warning: {run.folder / 'record.json'} is not kept: {error}", file=sys.stderr)
            continue
        place = runs.measured / run.name / "record.json"
        if record is None or place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, without_places(record))
        kept[record["status"]] += 1
    there = sum((runs.measured / name / "record.json").exists() for name in required)
    print(
        f"{kept['finished']} finished and {kept['failed']} failed runs kept; {there} of {len(required)} are there now"
    )
    return 0


USUAL_PLACES = {"results_path": "results", "base_path": "data"}


def without_places(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record, sealed again, with the default folders in place of those of the machine that made it."""
    usual = {name: value for name, value in USUAL_PLACES.items() if name in record["config"]}
    record = record | {"config": record["config"] | usual}
    return record | {"seal": seal_of(record)}


COMMANDS = {
    "claims": show_claims,
    "keep": keep_records,
    "repeat": repeat,
    "list": show_list,
    "status": show_status,
    "run": run_missing,
    "report": write_report,
}
