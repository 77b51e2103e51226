"""What the cluster tests share: runs of some seconds and their expected results."""

from pathlib import Path

from tests.scripts.sweeps import TINY, local_sweep, results_of
from utils.studies.presets import SMOKE
from utils.studies.runs import Run, Runs


def long_runs(folder: Path, count: int, **more) -> tuple[Runs, list[Run]]:
    """Return runs of a few seconds that save a checkpoint every few steps."""
    runs = Runs(SMOKE, str(folder))
    options = TINY | {"n_epochs": 60, "checkpoint_every": "3", "results_path": str(folder)} | more
    return runs, [runs.run_with({"model": "er", **options, "seed": seed}) for seed in range(count)]


def local_results(folder: Path, count: int) -> dict[str, dict]:
    """Return the results of such runs by name, trained undisturbed on this machine."""
    runs, wanted = long_runs(folder, count)
    assert local_sweep(runs, wanted, workers=2).exit_code == 0
    return {run.name: results_of(run) for run in wanted}


def owner_of(run: Run) -> int | None:
    """Return the process that has a run."""
    try:
        return int((run.folder / "lock").read_text().split()[1])
    except (OSError, IndexError):
        return None


def under_way(run: Run) -> bool:
    return owner_of(run) is not None and any(run.folder.glob("checkpoint-*.pt"))
