"""Small sweeps for the cluster tests, and what must come out of them."""

import json
import time
from pathlib import Path

from scripts.reproduce.presets import SMOKE
from scripts.reproduce.runs import Run, Runs

LONG = {"norm": "bn", "dataset": "seq-digits", "backbone": "mlp", "hidden": 8, "batch_size": 64, "n_epochs": 60}


class Told:
    """A display that remembers what it was told."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    def done(self, run, record):
        self.lines.append(f"done {run.name}")

    def failed(self, run, reason, tail):
        self.lines.append(f"failed {run.name} {reason}\n{tail}")

    def update(self, done, running, failed):
        pass


def long_runs(folder: Path, count: int, **more) -> tuple[Runs, list[Run]]:
    """Runs of a few seconds that save a checkpoint every few steps."""
    runs = Runs(SMOKE, str(folder))
    options = LONG | {"checkpoint_every": "3", "results_path": str(folder)} | more
    return runs, [runs._run({"model": "er", **options, "seed": seed}) for seed in range(count)]


def results_of(run: Run) -> dict:
    return json.loads((run.folder / "record.json").read_text())["results"]


def owner_of(run: Run) -> int | None:
    """The process that has a run."""
    try:
        return json.loads((run.folder / "owner.json").read_text())["pid"]
    except (OSError, ValueError):
        return None


def under_way(run: Run) -> bool:
    return owner_of(run) is not None and any(run.folder.glob("checkpoint-*.pt"))


def wait_for(condition, seconds: float = 120.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)
    return found
