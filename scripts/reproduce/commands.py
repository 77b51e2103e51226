"""What `list`, `run`, `status`, `report`, `claims`, `keep` and `work` do."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from pathlib import Path

import torch

from scripts.reproduce.claims import CLAIMS, judge, words
from scripts.reproduce.display import Display
from scripts.reproduce.launchers.local import LocalEngine, visible_gpus
from scripts.reproduce.presets import PRESETS
from scripts.reproduce.repeat import repeat
from scripts.reproduce.reporting import untrusted, write_report
from scripts.reproduce.request import remember, set_up
from scripts.reproduce.results import other_code
from scripts.reproduce.runs import DONE, FAILED, MISSING, RUNNING, STOPPED, Run, Runs, Speed, progress_of
from scripts.reproduce.selection import needed
from scripts.reproduce.sweep import Outcome, sweep, tail
from utils import process
from utils.errors import UsageError
from utils.files import write_json
from utils.run.build import Data
from utils.run.checkpoints import KEPT
from utils.run.estimate import memory_estimate
from utils.run.records import BadRecord, read_record, seal_of
from utils.tables import aligned, duration

# --- list and status --------------------------------------------------------------------------------------------------


def show_list(arguments) -> int:
    plans, selection = set_up(arguments)
    runs = selection.runs
    speed = Speed(runs)
    rows = [["", "runs", "done", "running", "failed", "missing", "hours left"]]
    width = max(len(plan.id) for plan in plans)
    for plan in [*plans, None]:
        found, waiting = needed(plans if plan is None else [plan], selection)
        states = Counter(runs.state(run) for run in found.values())
        left = [run for run in found.values() if runs.state(run) != DONE]
        rows.append(
            [f"{'all':{width}} together, each run once" if plan is None else f"{plan.id:{width}} {plan.title}",
             f"{len(found)}{'+' if waiting else ''}", *(str(states[state]) for state in (DONE, RUNNING, FAILED)),
             str(states[MISSING] + states[STOPPED]), hours(left, speed)]
        )  # fmt: skip
    print(f"preset {runs.preset.name}: {runs.preset.help}; seeds {', '.join(map(str, selection.seeds))}; "
          f"kappa and lambda: {selection.mode}")  # fmt: skip
    print(aligned(rows))
    for text in speed.about_trials():
        print(f"hours of {text}")
    for text in untrusted(runs):
        print(f"warning: {text}", file=sys.stderr)
    if any(row[1].endswith("+") for row in rows[1:]):
        print("+: more follow when the grid is finished and a winner is known")
    return 0


def hours(left: list[Run], speed: Speed) -> str:
    """Of one worker, by measured speed; ? where nothing comparable has been measured."""
    seconds = [speed.seconds(run) for run in left]
    known = sum(value for value in seconds if value is not None)
    if not left:
        return "0"
    if None not in seconds:
        return f"{known / 3600:.2f}"
    return f"{known / 3600:.2f} + ?" if known else "?"


SHOWN = 20  # of the runs that have not begun


def show_status(arguments) -> int:
    plans, selection = set_up(arguments)
    runs = selection.runs
    found, waiting = needed(plans, selection)
    states = {name: runs.state(run) for name, run in found.items()}
    for name, run in found.items():
        if states[name] == RUNNING:
            at = progress_of(run)
            print(f"running  {name}" + (f": task {at[0] + 1}, step {at[1]}/{run.steps}, {at[2]:.1f}/s" if at else ""))
        elif states[name] == FAILED:
            print(f"failed   {name}; its log, {run.log}, ends\n{tail(run, 3)}")
        elif states[name] == STOPPED:
            print(f"stopped  {name}: goes on from its checkpoint")
    missing = [name for name in found if states[name] == MISSING]
    for name in missing[:SHOWN]:
        print(f"missing  {name}")
    if len(missing) > SHOWN:
        print(f"missing  {len(missing) - SHOWN} more; `run --dry_run` prints the commands of all")
    counts = Counter(states.values())
    print(", ".join(f"{counts[state]} {state}" for state in (DONE, RUNNING, FAILED, STOPPED, MISSING)))
    if waiting:
        print(f"{waiting} experiments wait for their kappa and lambda")
    return 0


# --- run --------------------------------------------------------------------------------------------------------------


def run_missing(arguments) -> int:
    plans, selection = set_up(arguments)
    refuse_flags_of_other_launchers(arguments)
    outcome, checked = Outcome(), set()
    while True:
        found, waiting = needed(plans, selection)
        wanted = to_run(found, selection.runs, outcome, arguments.launcher)
        speed = Speed(selection.runs)
        expected = {run.name: speed.seconds(run) for run in wanted}
        announce(found, wanted, waiting, selection.runs, expected, speed.about_trials())
        if arguments.dry_run:
            for run in wanted:
                print(shlex.join(["python", "main.py", *run.command()]))
            return 0
        if problems := data_problems(wanted, selection.runs, checked):
            for problem in problems:
                process.complain(problem)
            return 2
        if not wanted:
            print("nothing to do; `python -m scripts.reproduce report` writes the tables", file=sys.stderr)
            break
        if arguments.preset in PRESETS:
            remember(arguments)
        latest = launch(wanted, len(found), arguments, selection.runs, expected)
        outcome.done += latest.done
        outcome.failed |= latest.failed
        outcome.stopped_by = latest.stopped_by
        if latest.stopped_by or not waiting or arguments.detach:
            break
    if not arguments.detach:
        summary(outcome)
    return outcome.exit_code


def to_run(found: dict[str, Run], runs: Runs, outcome: Outcome, launcher: str) -> list[Run]:
    states = {name: runs.state(run) for name, run in found.items() if name not in outcome.failed}
    left = [name for name, state in states.items() if state != DONE]
    running = [name for name in left if states[name] == RUNNING]
    if running and launcher == "slurm":  # an allocation must not wait for what somebody else runs
        print(f"{len(running)} runs are being run elsewhere and are left to it", file=sys.stderr)
        left = [name for name in left if name not in running]
    return [found[name] for name in left]


def data_problems(wanted: list[Run], runs: Runs, checked: set[tuple[str, str]]) -> list[str]:
    """A line for every data set of these runs that is missing or damaged. Each is read once, before anything starts:
    a download or a first decoding, too, happens once."""
    problems: dict[str, str] = {}
    for run in wanted:
        config = runs.config(run)
        content = (config.dataset, runs.spec(run).fingerprint)
        if content in checked:
            continue
        checked.add(content)
        try:
            Data(config).stream(torch.device("cpu"))
        except UsageError as error:
            problems[config.dataset] = f"{config.dataset}: {error}"
    return list(problems.values())


OWN_FLAGS = {"ray_address": ("ray",), "sbatch_args": ("slurm",), "detach": ("slurm",)}


def refuse_flags_of_other_launchers(arguments) -> None:
    for name, launchers in OWN_FLAGS.items():
        if getattr(arguments, name) and arguments.launcher not in launchers:
            raise UsageError(f"--{name} is for --launcher {launchers[0]}, not {arguments.launcher}")
    try:
        shlex.split(arguments.sbatch_args)
    except ValueError as error:
        raise UsageError(f"--sbatch_args {arguments.sbatch_args!r}: {error}") from None
    if arguments.launcher == "local" and not arguments.dry_run:  # which may be asked where there are none
        visible_gpus(arguments.gpus)
    if arguments.launcher == "slurm" and arguments.jobs_per_gpu > 1:
        raise UsageError("--jobs_per_gpu is for --launcher local or ray; Slurm gives every run a GPU")
    if arguments.launcher != "local" and arguments.gpus not in (None, "none", "1"):
        raise UsageError(
            f"--gpus {arguments.gpus}: with --launcher {arguments.launcher} it is 1 (a run asks for one) or none"
        )


def announce(
    found: dict, wanted: list[Run], waiting: int, runs: Runs, expected: dict[str, float | None], trials: list[str]
) -> None:
    """`expected` are seconds, None where nothing comparable has been measured; `trials` says what was only tried."""
    later = f", and {waiting} experiments wait for their kappa and lambda" if waiting else ""
    records = [record for run in found.values() if (record := runs.record(run)) is not None]
    print(f"{len(found)} runs, {len(records)} of them finished, {len(wanted)} to run{later}", file=sys.stderr)
    for text in other_code(records):
        print(f"note: {text}", file=sys.stderr)
    if not wanted:
        return
    known = [value for value in expected.values() if value is not None]
    time = duration(sum(known)) + (" and more" if len(known) < len(expected) else "") if known else "unknown"
    memory, checkpoints = heaviest(wanted, runs)
    print(
        f"time of one worker by measured speed: {time}; memory: up to {size(memory)} for each run at a time; "
        f"disk: about {size(len(found) * RECORD)} of records, up to {size(checkpoints)} of checkpoints for each run at "
        "a time",
        file=sys.stderr,
    )
    for text in trials:
        print(f"time of {text}", file=sys.stderr)


def size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


RECORD = 50e3  # bytes of a record, its log and its curve


def heaviest(wanted: list[Run], runs: Runs) -> tuple[float, float]:
    """Bytes of memory and of checkpoints that the largest run needs; one run of each kind is looked at."""
    kinds = {(run.known_options["model"], run.known_options["dataset"], run.known_options.get("buffer_size")): run
             for run in wanted}  # fmt: skip
    memories = [memory_estimate(runs.config(run), runs.spec(run)) for run in kinds.values()]
    checkpoints = [KEPT * (memory["network and gradients"] / 2 + memory["buffer"]) for memory in memories]
    return max(sum(memory.values()) for memory in memories), max(checkpoints)


def launch(wanted: list[Run], total: int, arguments, runs: Runs, expected: dict) -> Outcome:
    # Seed by seed, so that what is there when a sweep is stopped can be compared; long runs first, so that the last
    # ones to finish are short.
    wanted = sorted(wanted, key=lambda run: (run.known_options["seed"], -(expected[run.name] or run.steps)))
    if arguments.launcher == "slurm":
        return launch_on_slurm(wanted, total, arguments, runs, expected)
    engine = build_engine(arguments)
    display = Display(total, total - len(wanted), engine.slots, expected)
    try:
        return sweep(wanted, runs, engine, retries=arguments.retries, display=display)
    finally:
        display.close()
        engine.close()


def build_engine(arguments):
    if arguments.launcher == "local":
        return LocalEngine(
            arguments.workers, visible_gpus(arguments.gpus), arguments.jobs_per_gpu, arguments.num_threads
        )
    from scripts.reproduce.launchers.ray import RayEngine

    return RayEngine(
        arguments.ray_address, arguments.workers, arguments.gpus != "none", arguments.jobs_per_gpu,
        arguments.num_threads,
    )  # fmt: skip


def launch_on_slurm(wanted: list[Run], total: int, arguments, runs: Runs, expected: dict) -> Outcome:
    from scripts.reproduce.launchers import slurm

    gpus = bool(visible_gpus(None)) if arguments.gpus is None else arguments.gpus != "none"
    if arguments.gpus is None:  # a login node may have other devices than the nodes that compute
        asked = "one GPU; --gpus none asks for none" if gpus else "no GPU; --gpus 1 asks for one"
        print(f"every run asks Slurm for {asked}", file=sys.stderr)
    job, manifest = slurm.submit(
        wanted, Path(arguments.results_path) / "slurm", retries=arguments.retries, at_once=arguments.workers,
        gpus=gpus, num_threads=arguments.num_threads, sbatch_args=arguments.sbatch_args,
    )  # fmt: skip
    print(f"array job {job} with {len(wanted)} runs; status: python -m scripts.reproduce status", file=sys.stderr)
    if arguments.detach:
        return Outcome()
    display = Display(total, total - len(wanted), arguments.workers or len(wanted), expected)
    try:
        return slurm.follow(job, manifest, wanted, runs, display)
    finally:
        display.close()


def summary(outcome: Outcome) -> None:
    if outcome.stopped_by:
        print("stopped; the same command goes on from the checkpoints", file=sys.stderr)
    for name, reason in outcome.failed.items():
        print(f"failed: {name}: {reason}", file=sys.stderr)
    print(f"{len(outcome.done)} runs done, {len(outcome.failed)} failed", file=sys.stderr)


def work(arguments) -> int:
    """One run of a manifest, with retries: what an array task does."""
    from scripts.reproduce.launchers.slurm import read_manifest

    manifest, retries = read_manifest(Path(arguments.manifest))
    if not 0 <= arguments.index < len(manifest):
        raise UsageError(f"the manifest has runs 0 to {len(manifest) - 1}, not {arguments.index}")
    wanted = [manifest[arguments.index]]
    runs = Runs(PRESETS["paper"])
    engine = LocalEngine(1, visible_gpus(None)[:1], 1)
    display = Display(1, 0, 1, {wanted[0].name: None})
    outcome = sweep(wanted, runs, engine, retries=retries, display=display)
    return outcome.exit_code


# --- claims and records that are kept ---------------------------------------------------------------------------------


def show_claims(arguments) -> int:
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


def keep_records(arguments) -> int:
    """Records of the chosen plans, finished or failed, beside the code; those that are there stay as they are."""
    plans, selection = set_up(arguments)
    runs = selection.runs
    found, _ = needed(plans, selection)
    kept, failed = [], []
    for run in found.values():
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
        (kept if record["status"] == "finished" else failed).append(run.name)
    there = sum((runs.measured / name / "record.json").exists() for name in found)
    print(f"{len(kept)} finished and {len(failed)} failed runs kept; {there} of {len(found)} are there now")
    return 0


USUAL_PLACES = {"results_path": "results", "base_path": "data"}


def without_places(record: dict) -> dict:
    """Sealed again without the folders of the machine that made it: they change no number, and nobody else has them."""
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
    "work": work,
}
