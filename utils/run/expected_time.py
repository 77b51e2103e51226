"""How long a run takes, by the speed of recorded runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from statistics import median
from typing import Any

from utils.config.resolve import Config
from utils.run.records import BadRecord, read_record
from utils.tables import duration

MEASURED = Path(__file__).resolve().parents[2] / "results" / "measured"  # records that are kept with the code
# Options that a run's speed depends on most.
SIMILAR = ("dataset", "backbone", "num_filters", "model", "batch_size", "debug_mode")
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Speed:
    """The speed of a recorded run."""

    seconds_per_step: float
    is_kept: bool
    conditions: str


class RecordedSpeeds:
    """Speeds of finished runs.

    Args:
        records: Pairs of a record and whether it is kept with the code.
    """

    def __init__(self, records: Iterable[tuple[dict[str, Any], bool]]):
        self._speeds: dict[tuple[Any, ...], list[Speed]] = {}
        for record, is_kept in records:
            last = record["conditions"][-1]
            count = last.get("num_threads", UNKNOWN)
            conditions = f"{last.get('device', UNKNOWN)} with {count} thread{'' if count == 1 else 's'}"
            speed = Speed(record["wall_seconds"] / max(record["steps"], 1), is_kept, conditions)
            self._speeds.setdefault(_key(record["config"]), []).append(speed)

    def expected_seconds(self, options: Mapping[str, Any], steps: int) -> float | None:
        """Return the time of a run by the median speed of similar ones; None if there are none."""
        similar = self._speeds.get(_key(options))
        return steps * median(speed.seconds_per_step for speed in similar) if similar else None

    def source(self, runs: Iterable[Mapping[str, Any]]) -> str:
        """Return which recorded runs the times of runs with these options are taken from."""
        speeds = [speed for key in {_key(options) for options in runs} for speed in self._speeds.get(key, ())]
        if not speeds:
            return "no similar run is recorded"
        kept = sum(speed.is_kept for speed in speeds)
        of_them = f", {'' if kept == len(speeds) else f'{kept} of them '}kept in results/measured" if kept else ""
        where = " or ".join(sorted({speed.conditions for speed in speeds}))
        return f"by {len(speeds)} recorded run{'s' if len(speeds) > 1 else ''}{of_them}, on {where}"


def _key(options: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(options.get(name) for name in SIMILAR)


def expected_time(config: Config, steps: int, measured: Path = MEASURED) -> str:
    """Return how long a run takes and which recorded runs say so, as text."""
    speeds, options = RecordedSpeeds(_similar_records(config, measured)), config.values()
    seconds = speeds.expected_seconds(options, steps)
    return f"{UNKNOWN if seconds is None else duration(seconds)}, {speeds.source([options])}"


def _similar_records(config: Config, measured: Path) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the finished records with the run's model and data set, and whether they are kept with the code."""
    name = f"{escape(config.model)}-*-{escape(config.dataset)}-*/record.json"
    own = {path.parent.name: path for path in Path(config.results_path, "runs").glob(name)}
    for run, path in ({path.parent.name: path for path in measured.glob(name)} | own).items():
        try:
            record = read_record(path)
        except BadRecord:  # reported by what shows its numbers
            continue
        if record is not None and record["status"] == "finished":
            yield record, run not in own
