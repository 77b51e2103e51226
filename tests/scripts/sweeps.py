"""What tests of sweeps share: tiny runs, a display that keeps its lines, results, and waiting."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from utils.studies.launchers.local import LocalEngine
from utils.studies.presets import SMOKE
from utils.studies.runs import Run, Runs
from utils.studies.sweep import Outcome, sweep

ROOT = Path(__file__).resolve().parents[2]
TINY = {"norm": "bn", "dataset": "seq-digits", "backbone": "mlp", "hidden": 8, "batch_size": 64, "num_threads": 1}


def tiny_runs(folder: Path, **more) -> tuple[Runs, list[Run]]:
    runs = Runs(SMOKE, str(folder), measured=folder / "measured")
    options = TINY | {"results_path": str(folder)} | more
    return runs, [
        runs.run_with({"model": model, **options, "seed": seed}) for model in ("sgd", "er") for seed in (0, 1)
    ]


def local_sweep(runs: Runs, wanted: list[Run], workers: int = 1, retries: int = 0, display=None) -> Outcome:
    return sweep(wanted, runs, LocalEngine(workers, [], 1), retries=retries, display=display or Lines())


def run_table8(folder: Path, *words: str) -> subprocess.Popen:
    """Start the command that runs Table 8 in miniature: six runs."""
    command = [sys.executable, "-m", "scripts.reproduce", "run", "table8", "--preset", "smoke", "--results_path",
               str(folder), "--workers", "2", *words]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stderr=subprocess.PIPE)


class Lines:
    """A display that keeps its lines."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    def done(self, run, record):
        self.lines.append(f"done {run.name}")

    def update(self, done, running, failed):
        pass

    def close(self):
        pass


def results_of(run: Run) -> dict:
    return json.loads((run.folder / "record.json").read_text())["results"]


def wait_for(condition, seconds: float = 120.0):
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)
    return result
