"""Single runs: their commands, folders, states and records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from utils.config.registry import DATASETS, NORMS
from utils.config.resolve import Config, resolve
from utils.data.stream import StreamSpec
from utils.errors import DataMissing
from utils.files import is_locked
from utils.run.build import ABSENT, StreamBuilder, epoch_sizes
from utils.run.code_digest import changed_files, code_digests
from utils.run.identity import run_folder
from utils.run.probes import has_recording
from utils.run.records import BadRecord, read_record
from utils.run.run_folder import missing_outcomes
from utils.run.training import total_steps
from utils.studies.plans import Experiment
from utils.studies.presets import Preset
from utils.tables import duration

DONE, FAILED, RUNNING, STOPPED, MISSING = "done", "failed", "running", "stopped", "missing"
MEASURED = Path(__file__).resolve().parents[2] / "results" / "measured"  # records that are kept with the code


@dataclass(frozen=True)
class Run:
    """One command of `main.py`, as plain data that launchers pass around."""

    name: str
    options: tuple[tuple[str, Any], ...]
    folder: Path
    steps: int

    def sweep_command(self) -> list[str]:
        """Return the words after `main.py` in a sweep."""
        return [*self.command(), "--non_verbose"]

    def as_rerun(self) -> Run:
        """Return the same run, to be trained again though it is finished."""
        return replace(self, options=(*self.options, ("rerun", True)))

    def command(self) -> list[str]:
        """Return the words after `main.py`."""
        words: list[str] = []
        for name, value in self.options:
            if value is True:
                words.append(f"--{name}")
                continue
            if isinstance(value, tuple | list):
                value = value if name == "plugins" else [",".join(value)]
            words += [f"--{name}", *(map(str, value) if isinstance(value, tuple | list) else [str(value)])]
        return words

    def with_absolute_paths(self) -> Run:
        """Return the same run with paths, given or default, that hold in every working directory."""
        values = resolve(self.known_options).values()
        paths = {name: str(Path(values[name]).resolve()) for name in ("base_path", "results_path") if name in values}
        options = self.known_options | paths
        return replace(self, options=tuple(options.items()), folder=self.folder.resolve())

    @property
    def probes(self) -> tuple[str, ...]:
        return tuple(self.known_options.get("probe", ()))

    def with_probes_of(self, other: Run | None) -> Run:
        """Return the same run, recording also what the other does."""
        probes = tuple(sorted({*self.probes, *(other.probes if other else ())}))
        if probes == self.probes:
            return self
        return replace(self, options=tuple((self.known_options | {"probe": probes}).items()))

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    @property
    def failure(self) -> Path:
        """The file that says why a sweep gave up on the run; removed when it is started again."""
        return self.folder / "failure.txt"

    @cached_property
    def known_options(self) -> dict[str, Any]:
        return dict(self.options)


class Runs:
    """The runs of one preset below one results folder."""

    def __init__(
        self,
        preset: Preset,
        results_path: str = "results",
        base_path: str | None = None,
        plugins: tuple[str, ...] = (),
        num_threads: int = 1,
        measured: Path = MEASURED,
    ):
        self.preset, self.measured = preset, measured
        self.results_path = results_path
        self.base_path = base_path
        self.plugins = plugins
        self.num_threads = num_threads  # the same for all: rounding must not depend on how many run at a time
        self.untrusted: dict[Path, str] = {}  # records that do not count, and why
        self._specs: dict[tuple[str, ...], StreamSpec] = {}
        self._records: dict[str, dict[str, Any]] = {}

    # --- commands ----------------------------------------------------------------------------------------------

    def of(self, experiment: Experiment, seed: int, **more: Any) -> Run:
        """Return the run of an experiment with a seed; `more` are further flags."""
        return self.run_with(self.options(experiment, seed, **more))

    def options(self, experiment: Experiment, seed: int, **more: Any) -> dict[str, Any]:
        """Return the flags of a run, as main.py takes them."""
        data_flags, own_flags = self.preset.data[experiment.data].flags, dict(experiment.flags) | more
        dataset = DATASETS.get((data_flags | own_flags)["dataset"])
        preset_flags = {} if "backbone" in dataset.traits else self.preset.flags  # which are of the ResNet
        options = {"model": experiment.model, "norm": experiment.norm, **preset_flags, **data_flags}
        if experiment.buffer is not None:
            options["buffer_size"] = experiment.buffer
        options |= own_flags | {"seed": seed}
        if not NORMS.get(options["norm"]).has_option("groups"):
            options.pop("groups", None)
        if self.base_path is not None and dataset.has_option("base_path"):
            options["base_path"] = self.base_path
        if self.plugins:
            options["plugins"] = self.plugins
        if self.results_path != "results":
            options["results_path"] = self.results_path
        return options | self.preset.outcomes | {"num_threads": self.num_threads}

    def run_with(self, options: dict[str, Any]) -> Run:
        """Return the run of these flags."""
        config = resolve(options)
        spec = self._spec(config)
        folder = run_folder(config, spec)
        steps = total_steps(config, epoch_sizes(config, spec))
        return Run(folder.name, tuple(options.items()), folder, steps)

    def _spec(self, config: Config) -> StreamSpec:
        """Return the data's spec. The spec of a folder needs a look at all its files, so runs of it share one."""
        names = ["stop_after", *(option.name for option in DATASETS.get(config.dataset).options)]
        values = config.values()
        key = (config.dataset, *(str(values.get(name)) for name in sorted(names)))
        if key not in self._specs:
            try:
                self._specs[key] = StreamBuilder(config).spec
            except DataMissing:
                self._specs[key] = StreamBuilder(config, self._fingerprint_in_records(config.dataset)).spec
        return self._specs[key]

    def _fingerprint_in_records(self, dataset: str) -> str:
        """Return the fingerprint that all records of a data set have: without the data, only they can be shown."""
        identities = [record["identity"] for record in self.all_records()]
        fingerprints = {identity["data"] for identity in identities if identity["dataset"] == dataset}
        return fingerprints.pop() if len(fingerprints) == 1 else ABSENT

    def config(self, run: Run) -> Config:
        return resolve(run.known_options)

    def spec(self, run: Run) -> StreamSpec:
        return self._spec(self.config(run))

    # --- records and states ------------------------------------------------------------------------------------

    def record(self, run: Run) -> dict[str, Any] | None:
        """Return the record of a finished run, from the results folder or from those kept with the code."""
        if run.name not in self._records:
            record = self._finished(run.folder) or self._finished(self.measured / run.name)
            if record is not None:
                self._records[run.name] = record
        record = self._records.get(run.name)
        if record is None or all(has_recording(run.folder, probe, record) for probe in run.probes):
            return record
        record = self._finished(run.folder)  # which may have been trained again for its recordings
        if record is None or not all(has_recording(run.folder, probe, record) for probe in run.probes):
            return None
        self._records[run.name] = record
        return record

    def record_path(self, run: Run) -> Path:
        """Return where the record of a finished run lies."""
        own = run.folder / "record.json"
        return own if self._finished(run.folder) is not None else self.measured / run.name / "record.json"

    def _finished(self, folder: Path) -> dict[str, Any] | None:
        """Return the record of a finished run; one that cannot be trusted does not count and is noted."""
        path = folder / "record.json"
        try:
            record = read_record(path)
        except BadRecord as error:
            self.untrusted[path] = str(error)
            return None
        return record if record and record["status"] == "finished" else None

    def lacks_outcomes(self, run: Run) -> bool:
        """Return whether the run is finished in the results folder without an outcome that is asked for now."""
        record = self._finished(run.folder)
        return record is not None and bool(missing_outcomes(run.known_options, record, run.folder))

    def has_changed_code(self, run: Run) -> bool:
        """Return whether the run was finished in the results folder by code that has changed since."""
        record = self._finished(run.folder)
        return record is not None and bool(changed_files(record["sources"], code_digests(self.config(run))))

    def is_done(self, run: Run) -> bool:
        """Return whether the run has a record with everything that is asked for."""
        return self.record(run) is not None and not self.lacks_outcomes(run)

    def state(self, run: Run) -> str:
        if self.is_done(run):
            return DONE
        if not run.folder.exists():
            return MISSING
        if is_locked(run.folder):
            return RUNNING
        lacks_recordings = self._finished(run.folder) is not None
        if run.failure.exists() or (not lacks_recordings and (run.folder / "record.json").exists()):
            return FAILED
        return STOPPED if any(run.folder.glob("checkpoint-*.pt")) else MISSING

    def all_records(self) -> Iterator[dict[str, Any]]:
        """Yield the record of every finished run below the results folder or kept with the code, of any preset."""
        folders = {path.parent.name: path.parent for path in self.measured.glob("*/record.json")}
        folders |= {path.parent.name: path.parent for path in Path(self.results_path).glob("runs/*/record.json")}
        for name in sorted(folders):
            if (record := self._finished(folders[name])) is not None:
                yield record


def progress_of(run: Run) -> tuple[int, int, float] | None:
    """Return (task, step, steps per second) of a run under way from the end of its log; None before it has one."""
    try:
        with open(run.folder / "metrics.jsonl", "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 4096))
            lines = file.read().splitlines()
        before, event = (json.loads(line) for line in lines[-2:])
        seconds = event["seconds"] - before["seconds"]
        speed = (event["step"] - before["step"]) / seconds if seconds > 0 else 0.0
        return int(event["task"]), int(event["step"]), max(speed, 0.0)
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


SIMILARITY = (  # from the most similar recorded runs to those with only data and width in common
    ("dataset", "num_filters", "model", "norm"),
    ("dataset", "num_filters", "model"),
    ("dataset", "num_filters"),
)


def expected_seconds(wanted: Iterable[Run], runs: Runs) -> dict[str, float | None]:
    """Return how long each run takes by the median speed of the most similar recorded runs; None if there are none."""

    def key(options: dict[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(options.get(name)) for name in names)

    speeds: dict[tuple[str, ...], list[float]] = {}  # seconds per step
    for record in runs.all_records():
        for names in SIMILARITY:
            speed = record["wall_seconds"] / max(record["steps"], 1)
            speeds.setdefault(key(record["config"], names), []).append(speed)
    expected = {}
    for run in wanted:
        options = runs.config(run).values()
        similar = [speeds[key(options, names)] for names in SIMILARITY if key(options, names) in speeds]
        expected[run.name] = run.steps * median(similar[0]) if similar else None
    return expected


def total_time(seconds: Iterable[float | None]) -> str:
    """Return the sum as text; "unknown", or "and more" at its end, where the time of some runs is unknown."""
    expected = list(seconds)
    known = [value for value in expected if value is not None]
    if len(known) == len(expected):
        return duration(sum(known))
    return f"{duration(sum(known))} and more" if known else "unknown"
