"""Small sweeps for the cluster tests."""

import json
from pathlib import Path

from scripts.reproduce.presets import SMOKE
from scripts.reproduce.runs import Run, Runs

LONG = {"norm": "bn", "dataset": "seq-digits", "backbone": "mlp", "hidden": 8, "batch_size": 64, "n_epochs": 60}
LONG |= {"num_threads": 1}


def long_runs(folder: Path, count: int, **more) -> tuple[Runs, list[Run]]:
    """Runs of a few seconds that save a checkpoint every few steps."""
    runs = Runs(SMOKE, str(folder))
    options = LONG | {"checkpoint_every": "3", "results_path": str(folder)} | more
    return runs, [runs.run_with({"model": "er", **options, "seed": seed}) for seed in range(count)]


def owner_of(run: Run) -> int | None:
    """The process that has a run."""
    try:
        return json.loads((run.folder / "owner.json").read_text())["pid"]
    except (OSError, ValueError):
        return None


def under_way(run: Run) -> bool:
    return owner_of(run) is not None and any(run.folder.glob("checkpoint-*.pt"))
