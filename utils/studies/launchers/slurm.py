"""`--launcher slurm`: one array job whose tasks each run one line of a file of commands.

Before its time limit, or when it is preempted, a task is sent SIGTERM: the run saves a checkpoint and the task puts
itself back into the queue, from where it resumes. The task also makes the retries of a run that fails.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from utils.errors import UsageError
from utils.studies.runs import Run

REPOSITORY = Path(__file__).resolve().parents[3]
POLL_SECONDS = 5.0  # between two looks at the queue
CHECKPOINT_SECONDS = 120.0  # that runs have for their last checkpoint

SCRIPT = r"""#!/bin/bash
#SBATCH --job-name=adab2n
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
cd {repository}
command=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {commands})
stop() {{
    kill -TERM $child
    wait $child
    code=$?
    # 143: stopped by SIGTERM after a checkpoint. If the queue did that and not the sweep, resume later.
    if [ $code -eq 143 ] && [ ! -e {cancelled} ]; then
        scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
    fi
    exit $code
}}
for attempt in $(seq 0 {retries}); do
    # Bash runs a trap only between commands, so the run is in the background and waited for.
    eval "exec $command" &
    child=$!
    trap stop TERM
    wait $child
    code=$?
    case $code in 0 | 2 | 3) break ;; esac  # finished, bad usage, or running elsewhere
done
exit $code
"""


class SlurmEngine:
    """Submits all runs that are started before the first call of `finished` as one array job."""

    def __init__(
        self, folder: Path, slots: int, *, retries: int, at_once: int | None, gpus: bool, num_threads: int,
        sbatch_args: str,
    ):  # fmt: skip
        self.slots, self.retries = slots, retries
        self.commands = folder.resolve() / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}" / "commands.txt"
        self.cancelled = self.commands.with_name("cancelled")  # tells tasks not to put themselves into the queue again
        self.options = [f"--cpus-per-task={num_threads}", *(["--gpus=1"] if gpus else []), *shlex.split(sbatch_args)]
        self.limit = f"%{at_once}" if at_once else ""
        self.pending: list[Run] = []
        self.job = ""
        self.tasks: dict[str, str] = {}  # names of runs by task id, such as 17_3
        self.next_poll = 0.0

    def start(self, run: Run) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        self.pending.append(run.with_absolute_paths())

    def submit(self) -> None:
        self.commands.parent.mkdir(parents=True)
        lines = [
            f"{shlex.join([sys.executable, 'main.py', *run.sweep_command()])} >> {shlex.quote(str(run.log))} 2>&1\n"
            for run in self.pending
        ]
        self.commands.write_bytes(os.fsencode("".join(lines)))
        places = {"repository": REPOSITORY, "commands": self.commands, "cancelled": self.cancelled}
        quoted = {name: shlex.quote(str(path)) for name, path in places.items()}
        script = self.commands.with_name("job.sh")
        script.write_bytes(os.fsencode(SCRIPT.format(retries=self.retries, **quoted)))
        array = f"--array=0-{len(lines) - 1}{self.limit}"
        output = f"--output={self.commands.parent}/slurm-%A_%a.log"
        try:
            done = _run("sbatch", "--parsable", array, output, *self.options, str(script))
        except FileNotFoundError:
            raise UsageError("--launcher slurm needs sbatch, which this machine does not have") from None
        if done.returncode:
            reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise UsageError(f"sbatch refused: {reason}; see --sbatch_args")
        self.job = done.stdout.strip().split(";")[0]
        self.tasks = {f"{self.job}_{index}": run.name for index, run in enumerate(self.pending)}
        self.pending = []
        print(f"array job {self.job} with {len(self.tasks)} runs; commands in {self.commands}", file=sys.stderr)

    def finished(self, timeout: float) -> Sequence[tuple[str, int | None]]:
        if self.pending:
            self.submit()
        time.sleep(timeout)
        if time.monotonic() < self.next_poll:
            return []
        self.next_poll = time.monotonic() + POLL_SECONDS
        queued = self._queued_tasks()
        return [(self.tasks.pop(task), None) for task in list(self.tasks) if task not in queued]

    def _queued_tasks(self) -> set[str]:
        done = _run("squeue", "--noheader", "--array", "--format=%i", f"--jobs={self.job}")
        if done.returncode and "Invalid job id" not in done.stderr:
            return set(self.tasks)  # the controller does not answer, which will pass
        return set(done.stdout.split())

    def close(self) -> None:
        """Cancel the job: what waits is dropped, what runs stops after a checkpoint."""
        if not self.tasks:
            return
        self.cancelled.touch()
        _run("scancel", "--state=PENDING", self.job)
        _run("scancel", "--signal=TERM", "--batch", self.job)
        deadline = time.monotonic() + CHECKPOINT_SECONDS
        while self._queued_tasks() and time.monotonic() < deadline:
            time.sleep(1)
        _run("scancel", "--quiet", self.job)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
