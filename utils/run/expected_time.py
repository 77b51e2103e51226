"""How long a run takes, by the speed of recorded runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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


class RecordedSpeeds:
    """Finished runs, as pairs of a record and whether it is kept with the code, by what their speed depends on."""

    def __init__(self, records: Iterable[tuple[dict[str, Any], bool]]):
        self._records: dict[tuple[Any, ...], list[tuple[dict[str, Any], bool]]] = {}
        for record, is_kept in records:
            self._records.setdefault(_key(record["config"]), []).append((record, is_kept))

    def expected_seconds(self, options: Mapping[str, Any], steps: int) -> float | None:
        """Return the time of a run by the median speed of similar ones; None if there are none."""
        similar = self._records.get(_key(options), ())
        speeds = [record["wall_seconds"] / max(record["steps"], 1) for record, _ in similar]
        return steps * median(speeds) if speeds else None

    def source(self, runs: Iterable[Mapping[str, Any]]) -> str:
        """Return which recorded runs the times of runs with these options are taken from."""
        similar = [pair for key in {_key(options) for options in runs} for pair in self._records.get(key, ())]
        if not similar:
            return "no similar run is recorded"
        kept = sum(is_kept for _, is_kept in similar)
        of_them = f", {'' if kept == len(similar) else f'{kept} of them '}kept in results/measured" if kept else ""
        where = " or ".join(sorted({_where(record["conditions"][-1]) for record, _ in similar}))
        return f"by {len(similar)} recorded run{'s' if len(similar) > 1 else ''}{of_them}, on {where}"


def _key(options: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(options.get(name) for name in SIMILAR)


def _where(conditions: Mapping[str, Any]) -> str:
    count = conditions.get("num_threads", UNKNOWN)
    return f"{conditions.get('device', UNKNOWN)} with {count} thread{'' if count == 1 else 's'}"


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
