"""Training from Python: the same runs, records and folders as on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utils.config.parser import parse
from utils.config.resolve import resolve
from utils.errors import RunFailed, UsageError

if TYPE_CHECKING:
    import pandas as pd

    from backbone.network import Network

OTHER_COMMANDS = ("list", "check_data", "dry_run", "eval_only", "help")


@dataclass(frozen=True, repr=False)
class Result:
    """Finished runs that differ in their seeds.

    Attributes:
        records: What `record.json` holds, one per seed.
        folders: The folders of the runs.
    """

    records: list[dict[str, Any]]
    folders: list[Path]

    def __repr__(self) -> str:
        return f"finished runs: {len(self.records)}\n{self.metrics}"

    @property
    def record(self) -> dict[str, Any]:
        """The record of the first seed."""
        return self.records[0]

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per seed, and a column such as class_il_faa for every setting and metric."""
        import pandas as pd

        metrics = [{name: part["metrics"] for name, part in record["results"].items()} for record in self.records]
        return pd.json_normalize(metrics, sep="_").set_index(self._seeds)

    @property
    def accuracy(self) -> dict[str, pd.DataFrame]:
        """By setting, the accuracy in percent: rows are (seed, after_task), columns are tasks. Both count from 0."""
        from utils.results import matrices

        frame = matrices(self._frame)
        frame["seed"] = frame["run"].map(dict(zip(self._frame["run"], self._seeds, strict=True)))
        return {
            str(setting): part.pivot(index=["seed", "after_task"], columns="task", values="accuracy")
            for setting, part in frame.groupby("setting")
        }

    @property
    def curve(self) -> pd.DataFrame:
        """The training log: seed, step, task, epoch, loss (mean since the row before), learning rate, seconds."""
        from utils.results import curves

        frame = curves(self._frame)
        frame["run"] = frame["run"].map(dict(zip(self._frame["run"], self._seeds, strict=True)))
        return frame.rename(columns={"run": "seed"})

    def network(self, seed: int | None = None) -> Network:
        """Return the trained network of a seed (default: the first), in eval mode; needs `save_model=True`."""
        from utils.run.saved_model import load_network

        return load_network(self.folders[0 if seed is None else list(self._seeds).index(seed)])

    @property
    def _seeds(self) -> pd.Index:
        import pandas as pd

        return pd.Index([record["config"]["seed"] for record in self.records], name="seed")

    @property
    def _frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame({"run": [record["run"] for record in self.records], "folder": self.folders})


def run(**flags: Any) -> Result:
    """Train, or return the stored record of a finished run; an interrupted run goes on from its checkpoint.

    Args:
        flags: The flags of `main.py` without their dashes: `model="derpp"`, `debug_mode=True`, `seed=1`. `seeds` is a
            list, text such as "0-4", or a number n for the seeds 0 to n - 1.

    Returns:
        The records as tables.

    Raises:
        UsageError: With the message of the command line.
        RunFailed: If a run fails, with the reason of its record.

    Example:
        >>> result = run(model="derpp", norm="adab2n", dataset="seq-digits", seeds=3)
        >>> result.metrics["class_il_faa"].mean()
    """
    from utils.run.execution import run_or_reuse

    if other := [name for name in OTHER_COMMANDS if name in flags]:
        raise UsageError(f"{other[0]} is for the command line: python main.py --{other[0]}")
    explicit = parse(_words(flags))
    seeds = explicit.pop("seeds", None)
    configs = [resolve(explicit | {"seed": seed}) for seed in seeds] if seeds else [resolve(explicit)]
    records, folders = [], []
    for config in configs:
        record, folder = run_or_reuse(config)
        if record["status"] == "failed":
            raise RunFailed(f"{record['reason']}; see {folder.record_path}")
        records.append(record)
        folders.append(folder.path)
    return Result(records, folders)


def _words(flags: dict[str, Any]) -> list[str]:
    """Return keywords as the words of a command."""
    words = []
    for name, value in flags.items():
        if name == "seeds" and isinstance(value, int):
            value = range(value)
        if isinstance(value, list | tuple | range) and name != "plugins":
            value = ",".join(map(str, value))
        if value is True:
            words.append(f"--{name}")
        elif isinstance(value, list | tuple):
            words += [f"--{name}", *map(str, value)]
        elif value is not None and value is not False:
            words.append(f"--{name}={value}")
    return words
