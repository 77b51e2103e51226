"""`--launcher slurm`: one array job over a manifest of runs.

Every array task carries one run through, with the same retries as everywhere. Before its time limit or when it is
preempted it is sent SIGTERM, saves a checkpoint and puts itself back into the queue; what it starts again goes on from
there. The sweep watches the results folder and the queue.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from scripts.reproduce.runs import DONE, FAILED, RUNNING, Run, Runs
from scripts.reproduce.sweep import Outcome, Stop, tail
from utils.errors import UsageError
from utils.files import write_json
from utils.run.records import seal_of

REPOSITORY = Path(__file__).resolve().parents[3]
POLL = 5.0  # seconds between two looks at the queue
MAY_STOP = 120.0  # seconds that runs have for their last checkpoint
STOPPED = 143  # exit code of a sweep that was told to stop

SCRIPT = """#!/bin/bash
#SBATCH --job-name=adab2n
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
cd {repository}
{python} -m scripts.reproduce work {manifest} "$SLURM_ARRAY_TASK_ID" &
child=$!
# Bash runs a trap only between commands, so the work is in the background and waited for.
stop() {{
    kill -TERM $child
    wait $child
    code=$?
    # Told to stop by the queue, not by the sweep: go on later.
    if [ $code -eq {stopped} ] && [ ! -e {cancelled} ]; then
        scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
    fi
    exit $code
}}
trap stop TERM
wait $child
"""


def write_manifest(folder: Path, wanted: list[Run], retries: int) -> Path:
    path = folder / f"manifest-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.json"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"name": run.name, "options": run.known_options, "folder": str(run.folder), "steps": run.steps}
        for run in (run.anywhere() for run in wanted)
    ]
    manifest = {"retries": retries, "runs": rows}
    write_json(path, manifest | {"seal": seal_of(manifest)})
    return path


def read_manifest(path: Path) -> tuple[list[Run], int]:
    try:
        manifest = json.loads(path.read_bytes())
        if manifest["seal"] != seal_of(manifest):
            raise ValueError("its seal does not match")
        rows, retries = manifest["runs"], int(manifest["retries"])
        runs = [Run(row["name"], tuple(row["options"].items()), Path(row["folder"]), row["steps"]) for row in rows]
    except (OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is no manifest of this program, or damaged: {error}; submit the sweep again"
        ) from None
    return runs, retries


def submit(
    wanted: list[Run],
    folder: Path,
    *,
    retries: int,
    at_once: int | None,
    gpus: bool,
    num_threads: int,
    sbatch_args: str,
) -> tuple[str, Path]:
    """The id of the array job, and its manifest."""
    more = shlex.split(sbatch_args)
    manifest = write_manifest(folder, wanted, retries)
    script = manifest.with_suffix(".sh")
    content = SCRIPT.format(
        repository=shlex.quote(str(REPOSITORY)), python=shlex.quote(sys.executable),
        manifest=shlex.quote(str(manifest.resolve())), stopped=STOPPED,
        cancelled=shlex.quote(str(cancelled_mark(manifest).resolve())),
    )  # fmt: skip
    script.write_bytes(os.fsencode(content))
    limit = f"%{at_once}" if at_once else ""
    words = [
        "sbatch", "--parsable", f"--array=0-{len(wanted) - 1}{limit}", f"--cpus-per-task={num_threads}",
        f"--output={folder.resolve()}/slurm-%A_%a.log", *(["--gpus=1"] if gpus else []), *more,
        str(script),
    ]  # fmt: skip
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    except FileNotFoundError:
        raise UsageError("--launcher slurm needs sbatch, which this machine does not have") from None
    if done.returncode:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise UsageError(f"sbatch refused: {reason}; see --sbatch_args")
    return done.stdout.strip().split(";")[0], manifest


def cancelled_mark(manifest: Path) -> Path:
    """A file that tells array tasks not to queue again."""
    return manifest.with_suffix(".cancelled")


def in_queue(job: str) -> bool:
    done = subprocess.run(
        ["squeue", "--noheader", f"--jobs={job}"], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        return "Invalid job id" not in done.stderr  # long gone; any other error is the controller's, and will pass
    return bool(done.stdout.strip())


def cancel(job: str, manifest: Path) -> None:
    """What waits is dropped, what runs stops after a checkpoint."""
    try:
        cancelled_mark(manifest).touch()
    except OSError as error:
        print(
            f"warning: runs may queue again: cannot write {cancelled_mark(manifest)}: {error.strerror}", file=sys.stderr
        )
    subprocess.run(["scancel", "--state=PENDING", job], check=False)
    subprocess.run(["scancel", "--signal=TERM", "--batch", job], check=False)
    patience = time.monotonic() + MAY_STOP
    while in_queue(job) and time.monotonic() < patience:
        time.sleep(1)
    subprocess.run(["scancel", "--quiet", job], check=False)


def follow(job: str, manifest: Path, wanted: list[Run], runs: Runs, display) -> Outcome:
    """Until the job has left the queue. Stopping the sweep cancels the job; its runs stop after a checkpoint."""
    outcome = Outcome()
    left = {run.name: run for run in wanted}
    with Stop() as stop:
        while left:
            queued = in_queue(job)  # before looking at the runs: what ended in between is then seen as done
            states = {name: runs.state(run) for name, run in left.items()}
            for name in [name for name, state in states.items() if state == DONE]:
                outcome.done.append(name)
                display.done(left[name], runs.record(left.pop(name)))
            running, failed = ([left[name] for name in left if states[name] == state] for state in (RUNNING, FAILED))
            display.update(len(outcome.done), running, failed)
            if stop.number:
                outcome.stopped_by = stop.number
                cancel(job, manifest)
                return outcome
            if not queued:
                break
            again = time.monotonic() + POLL
            while not stop.number and time.monotonic() < again:
                time.sleep(0.2)
    for run in left.values():
        outcome.failed[run.name] = "left the queue unfinished"
        display.failed(run, outcome.failed[run.name], tail(run))
    return outcome
