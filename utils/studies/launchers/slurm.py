"""`--launcher slurm`: one array job whose tasks each run one line of a file of commands.

Before its time limit, or when it is preempted, a task is sent SIGTERM, or SIGUSR1 if `--sbatch_args` has
`--signal=B:USR1@SECONDS`. Then the run saves a checkpoint and the task puts itself back into the queue, from where it
resumes. The task also makes the retries of a run that fails.
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
from utils.files import reject_links
from utils.studies.runs import Run
from utils.tables import count_of

REPOSITORY = Path(__file__).resolve().parents[3]
POLL_SECONDS = 5.0  # between two looks at the queue, whose controller others use too
CHECKPOINT_SECONDS = 120.0  # that runs have for their last checkpoint

SCRIPT = r"""#!/bin/bash
#SBATCH --job-name=adab2n
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
cd {repository}
jobs={folder}
line=$((SLURM_ARRAY_TASK_ID + 1))
command=$(sed -n "${{line}}p" "$jobs/commands.txt")
run=$(sed -n "${{line}}p" "$jobs/folders.txt")
stop() {{
    kill -TERM $child
    wait $child
    code=$?
    # 143: stopped by SIGTERM after a checkpoint. If the queue did that and not the sweep, resume later.
    if [ $code -eq 143 ] && [ ! -e "$jobs/cancelled" ]; then
        scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
    fi
    exit $code
}}
for attempt in $(seq 0 {retries}); do
    # A run that has begun again has set its old record aside; from then on it is resumed.
    [ -e "$run/record.json" ] || command=${{command/ --rerun/}}
    # Bash runs a trap only between commands, so the run is in the background and waited for.
    eval "exec $command" >> "$run/output.log" 2>&1 &
    child=$!
    trap stop TERM USR1
    wait $child
    code=$?
    case $code in 0 | 2 | 3) break ;; esac  # finished, bad usage, or running elsewhere
done
exit $code
"""


class SlurmEngine:
    """Submits all runs that are started before the first call of `finished` as one array job."""

    def __init__(self, folder: Path, slots: int, retries: int, options: list[str], at_once: int | None = None):
        self.slots, self.retries, self.options = slots, retries, options
        self.limit = f"%{at_once}" if at_once else ""
        self.folder = folder.resolve() / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self.pending: list[Run] = []
        self.job = ""
        self.names: dict[str, str] = {}  # of the runs, by id of the task, such as 17_3

    def start(self, run: Run) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        reject_links(run.folder, *run.folder.glob("*"))
        self.pending.append(run.with_absolute_paths())

    def submit(self) -> None:
        self.folder.mkdir(parents=True)
        commands = [shlex.join([sys.executable, "main.py", *run.command(), "--non_verbose"]) for run in self.pending]
        repository, folder = shlex.quote(str(REPOSITORY)), shlex.quote(str(self.folder))
        files = {
            "commands.txt": "".join(f"{command}\n" for command in commands),
            "folders.txt": "".join(f"{run.folder}\n" for run in self.pending),
            "job.sh": SCRIPT.format(repository=repository, folder=folder, retries=self.retries),
        }
        for name, text in files.items():
            (self.folder / name).write_bytes(os.fsencode(text))
        array = f"--array=0-{len(commands) - 1}{self.limit}"
        output = f"--output={self.folder}/slurm-%A_%a.log"
        try:
            done = _call("sbatch", "--parsable", array, output, *self.options, str(self.folder / "job.sh"))
        except FileNotFoundError:
            raise UsageError("--launcher slurm needs sbatch, which this machine does not have") from None
        if done.returncode:
            reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise UsageError(f"sbatch refused: {reason}; see --sbatch_args")
        self.job = done.stdout.strip().split(";")[0]
        self.names = {f"{self.job}_{index}": run.name for index, run in enumerate(self.pending)}
        self.pending = []
        print(f"array job {self.job} with {count_of(len(commands), 'run')}; commands in {self.folder}", file=sys.stderr)

    def finished(self, timeout: float) -> Sequence[tuple[str, int | None]]:
        if self.pending:
            self.submit()
        time.sleep(POLL_SECONDS)
        queued = self._queued_tasks()
        return [(self.names.pop(task), None) for task in list(self.names) if task not in queued]

    def _queued_tasks(self) -> set[str]:
        done = _call("squeue", "--noheader", "--array", "--format=%i", f"--jobs={self.job}")
        if done.returncode and "Invalid job id" not in done.stderr:
            return set(self.names)  # the controller does not answer, which will pass
        return set(done.stdout.split())

    def close(self) -> None:
        """Cancel the job: what waits is dropped, what runs stops after a checkpoint."""
        if not self.names:
            return
        (self.folder / "cancelled").touch()  # tells the tasks not to queue themselves again
        _call("scancel", "--state=PENDING", self.job)
        _call("scancel", "--signal=TERM", "--batch", self.job)
        deadline = time.monotonic() + CHECKPOINT_SECONDS
        while self._queued_tasks() and time.monotonic() < deadline:
            time.sleep(1)
        _call("scancel", "--quiet", self.job)


def _call(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
