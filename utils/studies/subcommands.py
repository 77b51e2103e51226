"""The sub-commands of `scripts.reproduce`; `report` and `repeat` have modules of their own."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections import Counter
from itertools import chain
from pathlib import Path

import torch

from utils import console
from utils.console import log
from utils.errors import UsageError
from utils.files import write_json
from utils.run.build import StreamBuilder
from utils.run.identity import hash_meanings
from utils.run.records import BadRecord, different_conditions, read_record, seal_of
from utils.studies.launchers.local import LocalEngine, visible_gpus
from utils.studies.launchers.ray import RayEngine
from utils.studies.launchers.slurm import SlurmEngine
from utils.studies.repeat import repeat
from utils.studies.report_command import write_report
from utils.studies.request import set_up
from utils.studies.results import warnings
from utils.studies.runs import DONE, FAILED, MISSING, RUNNING, STOPPED, Run, Runs, expected_seconds, total_time
from utils.studies.selection import required_runs
from utils.studies.sweep import Display, Engine, Outcome, progress_text, sweep
from utils.studies.verdicts import judge_all
from utils.tables import aligned, count_of


def show_list(arguments: Namespace) -> int:
    plans, selection = set_up(arguments)
    runs = selection.runs
    all_runs, speeds = required_runs(plans, selection)[0].values(), runs.recorded_speeds()
    expected = expected_seconds(all_runs, speeds)
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
    source = speeds.source(run.config.values() for run in all_runs)
    print(f"time left: of one worker, {source}; +: more runs follow when their grid is finished")
    for text in runs.untrusted:
        log.warning(text)
    return 0


def show_status(arguments: Namespace) -> int:
    plans, selection = set_up(arguments)
    required, waiting = required_runs(plans, selection)
    groups: dict[str, list[Run]] = {state: [] for state in (DONE, RUNNING, FAILED, STOPPED, MISSING)}
    for run in required.values():
        groups[selection.runs.state(run)].append(run)
    meanings = hash_meanings({run.name: selection.runs.identity(run) for run in required.values()})
    for state in (RUNNING, FAILED, STOPPED, MISSING):
        for run in groups[state]:
            meaning = f" ({meanings[run.name]})" if run.name in meanings else ""
            print(f"{state:9}{progress_text(run) or run.name}{meaning}{f'; see {run.log}' if state == FAILED else ''}")
    print(", ".join(f"{len(group)} {state}" for state, group in groups.items()))
    if waiting:
        print(f"{count_of(waiting, 'experiment')} waiting for kappa and lambda")
    return 0


# --- run --------------------------------------------------------------------------------------------------------------


def run_missing(arguments: Namespace) -> int:
    plans, selection = set_up(arguments)
    check_launcher_flags(arguments)
    runs, outcome = selection.runs, Outcome()
    while True:  # until all grids are finished and their winners are run
        required, waiting = required_runs(plans, selection)
        states = {name: runs.state(run) for name, run in required.items() if name not in outcome.failed}
        skipped = {DONE, RUNNING} if arguments.launcher == "slurm" else {DONE}  # an allocation must not wait
        wanted = [required[name] for name, state in states.items() if state not in skipped]
        announce(required, wanted, waiting, runs)
        if arguments.dry_run:
            print("".join(f"{shlex.join(['python', 'main.py', *run.command()])}\n" for run in wanted), end="")
            return 0
        if problems := data_problems(wanted, runs):
            for problem in problems:
                console.print_error(problem)
            return 2
        if wanted:
            latest = launch(wanted, len(required), arguments, runs)
            outcome = Outcome(outcome.done + latest.done, outcome.failed | latest.failed, latest.stopped_by)
        if arguments.detach or outcome.stopped_by or not (wanted and waiting):
            break
    if outcome.stopped_by:
        print("stopped; the same command resumes the checkpoints", file=sys.stderr)
    for name, reason in outcome.failed.items():
        print(f"failed: {name}: {reason}", file=sys.stderr)
    print(f"{count_of(len(outcome.done), 'run')} done, {len(outcome.failed)} failed", file=sys.stderr)
    return outcome.exit_code


def announce(required: dict[str, Run], wanted: list[Run], waiting: int, runs: Runs) -> None:
    """Print how many runs there are, how many are finished, and how long the others will take."""
    records = [record for run in required.values() if (record := runs.record(run))]
    later = f", and {count_of(waiting, 'experiment')} waiting for kappa and lambda" if waiting else ""
    total = count_of(len(required), "run")
    print(f"{total}, {len(records)} finished, {len(wanted)} to run{later}", file=sys.stderr)
    for text in runs.changed_code_warnings():
        log.warning(text)
    now = {"num_threads": runs.num_threads, "torch": str(torch.__version__)}  # a launcher may choose another machine
    other = {record["run"]: what for record in records if (what := different_conditions(now, record["conditions"][-1]))}
    for name, what in list(other.items())[:1]:
        log.warning(f"{count_of(len(other), 'finished run')} of other conditions, such as {name}: {what}")
    if not wanted:
        return
    speeds = runs.recorded_speeds()
    time = total_time(expected_seconds(wanted, speeds).values())
    print(f"time of one worker: {time}, {speeds.source(run.config.values() for run in wanted)}", file=sys.stderr)


def data_problems(wanted: list[Run], runs: Runs) -> list[str]:
    """Return a line for every data set of these runs that is missing or damaged.

    Each is read once, before anything starts, so that a download or a first decoding happens once too.
    """
    run_on = {(run.options["dataset"], runs.spec(run.config).fingerprint): run for run in wanted}
    problems: dict[str, str] = {}
    for (dataset, _), run in run_on.items():
        try:
            StreamBuilder(run.config).stream(torch.device("cpu"))
        except UsageError as error:
            problems[dataset] = f"{dataset}: {error}"
    return list(problems.values())


def check_launcher_flags(arguments: Namespace) -> None:
    launcher = arguments.launcher
    for name, owner in (("ray_address", "ray"), ("sbatch_args", "slurm"), ("detach", "slurm")):
        if getattr(arguments, name) and launcher != owner:
            raise UsageError(f"--{name} is for --launcher {owner}, not {launcher}; remove it")
    if launcher == "local" and not arguments.dry_run:  # GPUs of another machine are fine in a dry run
        visible_gpus(arguments.gpus)
    if launcher == "slurm" and arguments.jobs_per_gpu > 1:
        raise UsageError("--jobs_per_gpu is for --launcher local or ray; Slurm gives every run a GPU")
    if launcher != "local" and arguments.gpus not in (None, "none", "1"):
        raise UsageError(f"--gpus {arguments.gpus}: with --launcher {launcher} it is 1 (a run asks for one) or none")


def launch(wanted: list[Run], total: int, arguments: Namespace, runs: Runs) -> Outcome:
    workers, gpus, per_gpu, threads = arguments.workers, arguments.gpus, arguments.jobs_per_gpu, arguments.num_threads
    retries = arguments.retries
    engine: Engine
    if arguments.launcher == "slurm":
        options = [f"--cpus-per-task={threads}", *(["--gpus=1"] if gpus == "1" else []), *arguments.sbatch_args]
        slurm = SlurmEngine(Path(arguments.results_path) / "slurm", len(wanted), retries, options, workers)
        engine, retries = slurm, 0  # its tasks make the retries
        if arguments.detach:
            for run in wanted:
                slurm.start(run.as_rerun() if runs.lacks_outcomes(run) else run)
            slurm.submit()
            return Outcome()
    elif arguments.launcher == "ray":
        engine = RayEngine(arguments.ray_address, workers, gpus != "none", per_gpu, threads)
    else:
        engine = LocalEngine(workers, visible_gpus(gpus), per_gpu, threads)
    return sweep(wanted, runs, engine, retries=retries, display=Display(total, total - len(wanted)))


# --- claims and records that are kept ---------------------------------------------------------------------------------


def show_claims(arguments: Namespace) -> int:
    _, selection = set_up(arguments)
    selection.runs.reject_damaged_records()
    verdicts = judge_all(selection)
    for verdict, exploratory in verdicts:
        print(f"{verdict.conclusion:14}{verdict.claim.statement} ({verdict.claim.source})")
        if published := (verdict if verdict.values else exploratory).published:
            print(f"{'':14}paper: {published.text(2)}")
        for seeds, part in {"confirmatory": verdict, "exploratory": exploratory}.items():
            print(f"{'':14}{seeds} seeds: {part.summary}")
            for method, of_method in part.by_method.items() if part.differs_by_method else ():
                print(f"{'':16}{method}: {of_method.difference.text(2)}")
    for text in warnings(chain(*verdicts), selection.runs):
        log.warning(text)
    return 0


def keep_records(arguments: Namespace) -> int:
    """Copy the records of the chosen plans, finished or failed, to results/measured; no copy is replaced.

    A copy is sealed again, with the default folders in place of those of the machine that made it.
    """
    plans, selection = set_up(arguments)
    required, _ = required_runs(plans, selection)
    copies = {name: selection.runs.measured / name / "record.json" for name in required}
    kept: Counter[str] = Counter()
    usual = {"results_path": "results", "base_path": "data"}
    for name, copy in copies.items():
        path = required[name].folder / "record.json"
        try:
            record = None if copy.exists() else read_record(path)
        except BadRecord as error:
            log.warning(f"{path} is not kept: {error}")
            continue
        if record is not None:
            record["config"] |= {option: usual[option] for option in usual.keys() & record["config"].keys()}
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_json(copy, record | {"seal": seal_of(record)})
            kept[record["status"]] += 1
    there = f"{sum(path.exists() for path in copies.values())} of {len(required)} are there now"
    print(f"runs kept: {kept['finished']} finished, {kept['failed']} failed; {there}")
    return 0


COMMANDS = {"claims": show_claims, "keep": keep_records, "repeat": repeat, "list": show_list, "status": show_status,
            "run": run_missing, "report": write_report}  # fmt: skip
