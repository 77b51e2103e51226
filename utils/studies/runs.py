"""Single runs: their commands, folders, states and records."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from utils.config.registry import DATASETS, NORMS
from utils.config.resolve import Config, resolve
from utils.data.stream import StreamSpec
from utils.errors import DataMissing, UsageError
from utils.files import is_locked
from utils.run.build import ABSENT, StreamBuilder, epoch_sizes
from utils.run.code_digest import changed_files, code_digests
from utils.run.expected_time import MEASURED, RecordedSpeeds
from utils.run.identity import run_folder, run_identity
from utils.run.probes import has_recording
from utils.run.records import BadRecord, entries_of, read_record
from utils.run.run_folder import missing_outcomes
from utils.run.training import total_steps
from utils.studies.plans import Experiment
from utils.studies.presets import Preset
from utils.tables import count_of, duration

DONE, FAILED, RUNNING, STOPPED, MISSING = "done", "failed", "running", "stopped", "missing"


@dataclass(frozen=True)
class Run:
    """One command of `main.py`, as plain data that launchers pass around."""

    name: str
    options: dict[str, Any]
    folder: Path
    steps: int

    def command(self) -> list[str]:
        """Return the words after `main.py`."""
        words: list[str] = []
        for name, value in self.options.items():
            if value is False:  # a flag that is not set
                continue
            words.append(f"--{name}")
            if name == "plugins":
                words += value
            elif value is not True:
                words.append(",".join(map(str, value)) or "none" if isinstance(value, tuple | list) else str(value))
        return words

    @property
    def config(self) -> Config:
        return resolve(self.options)

    def as_rerun(self) -> Run:
        """Return the same run, to be trained again though it is finished."""
        return replace(self, options=self.options | {"rerun": True})

    def with_absolute_paths(self) -> Run:
        """Return the same run with paths, given or default, that hold in every working directory."""
        values = self.config.values()
        paths = {name: str(Path(values[name]).resolve()) for name in ("base_path", "results_path") if name in values}
        return replace(self, options=self.options | paths, folder=self.folder.resolve())

    @property
    def probes(self) -> tuple[str, ...]:
        return tuple(self.options.get("probe", ()))

    def with_probes_of(self, other: Run | None) -> Run:
        """Return the same run, recording also what the other does."""
        probes = tuple(sorted({*self.probes, *(other.probes if other else ())}))
        return replace(self, options=self.options | {"probe": probes}) if probes else self

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    @property
    def failure(self) -> Path:
        return self.folder / "failure.txt"  # why a sweep gave up on the run; removed when it is started again


@dataclass(eq=False)
class Runs:
    """The runs of one preset below one results folder."""

    preset: Preset
    results_path: str = "results"
    base_path: str | None = None
    plugins: tuple[str, ...] = ()
    num_threads: int = 1  # the same for all: rounding must not depend on how many run at a time
    measured: Path = MEASURED
    untrusted: list[str] = field(init=False, default_factory=list)  # a line for every record that does not count
    _runs: dict[tuple[Any, ...], Run] = field(init=False, default_factory=dict)  # resolving flags takes a while
    _specs: dict[tuple[str, ...], StreamSpec] = field(init=False, default_factory=dict)
    # Time of change and content by path.
    _records: dict[Path, tuple[int, dict[str, Any] | None]] = field(init=False, default_factory=dict)

    def of(self, experiment: Experiment, seed: int, **more: Any) -> Run:
        key = (experiment, seed, *more.items())
        if key not in self._runs:
            self._runs[key] = self.run_with(self.options(experiment, seed, **more))
        return self._runs[key]

    def options(self, experiment: Experiment, seed: int, **more: Any) -> dict[str, Any]:
        """Return the flags of an experiment's run, as main.py takes them; `more` are further ones."""
        data_flags, own_flags = self.preset.data[experiment.data].flags, dict(experiment.flags) | more
        dataset = DATASETS.get((data_flags | own_flags)["dataset"])
        preset_flags = {} if "backbone" in dataset.traits else self.preset.flags  # which are of the ResNet
        options = {"model": experiment.model, "norm": experiment.norm, **preset_flags, **data_flags}
        if experiment.buffer is not None:
            options["buffer_size"] = experiment.buffer
        options |= own_flags | {"seed": seed}
        if not NORMS.get(options["norm"]).has_option("groups"):
            options.pop("groups", None)
        base_path = self.base_path if dataset.has_option("base_path") else None
        results_path = self.results_path if self.results_path != "results" else None
        given = {"base_path": base_path, "plugins": self.plugins or None, "results_path": results_path}
        options |= {name: value for name, value in given.items() if value is not None}
        return options | self.preset.outcomes | {"num_threads": self.num_threads}

    def run_with(self, options: dict[str, Any]) -> Run:
        config = resolve(options)
        spec = self.spec(config)
        folder = run_folder(config, spec)
        return Run(folder.name, options, folder, total_steps(config, epoch_sizes(config, spec)))

    def spec(self, config: Config) -> StreamSpec:
        """Return the data's spec, of which runs on the same data share one: a folder's needs a look at all its files.

        Without the data, it has the fingerprint that all their records have, so that these can be shown.
        """
        names = ["stop_after", *(option.name for option in DATASETS.get(config.dataset).options)]
        values = config.values()
        key = (config.dataset, *(str(values.get(name)) for name in sorted(names)))
        if key not in self._specs:
            try:
                self._specs[key] = StreamBuilder(config).spec
            except DataMissing:
                identities = [record["identity"] for record in self.all_records()]
                prints = {identity["data"] for identity in identities if identity["dataset"] == config.dataset}
                self._specs[key] = StreamBuilder(config, prints.pop() if len(prints) == 1 else ABSENT).spec
        return self._specs[key]

    def identity(self, run: Run) -> dict[str, Any]:
        return run_identity(run.config, self.spec(run.config))

    def record(self, run: Run) -> dict[str, Any] | None:
        """Return the record of a finished run with its recordings, from the results folder or kept with the code."""
        for folder in (run.folder, self.measured / run.name):
            record = self._finished(folder)
            if record is not None and all(has_recording(run.folder, probe, record) for probe in run.probes):
                return record
        return None

    def has_diverged(self, run: Run) -> bool:
        """Return whether the run has a record, here or kept with the code, that says that it diverged."""
        records = [self._record(folder) for folder in (run.folder, self.measured / run.name)]
        return any(record and record["status"] == "failed" and "diverged" in record["reason"] for record in records)

    def _finished(self, folder: Path) -> dict[str, Any] | None:
        record = self._record(folder)
        return record if record and record["status"] == "finished" else None

    def _record(self, folder: Path) -> dict[str, Any] | None:
        """Return the record of a run; one that cannot be trusted does not count and is noted."""
        path = folder / "record.json"
        if not path.exists():
            return None
        changed = path.stat().st_mtime_ns
        if self._records.get(path, (0, None))[0] != changed:
            record = None
            try:
                record = read_record(path)
            except BadRecord as error:
                self.untrusted.append(f"{path} does not count: {error}")
            self._records[path] = changed, record
        return self._records[path][1]

    def reject_damaged_records(self) -> None:
        """Raise UsageError if a record below the results folder or kept with the code cannot be trusted."""
        for path in self._record_paths():
            self._finished(path.parent)
        for text in self.untrusted:
            raise UsageError(f"{text}; restore it, or remove it and run it again")

    def on_other_data(self) -> list[str]:
        """Return a line for every data set of which records do not count, because they are of other data."""
        lines, identities = [], [record["identity"] for record in self.all_records()]
        for dataset in dict.fromkeys(dataset for dataset, *_ in self._specs):
            in_use = sorted({spec.fingerprint for key, spec in self._specs.items() if key[0] == dataset})
            others = [each["data"] for each in identities if each["dataset"] == dataset and each["data"] not in in_use]
            if others:
                what = f"{count_of(len(others), 'record')} on {dataset} left out, of other data"
                data = f"({', '.join(sorted({*others}))}) than those in use ({', '.join(in_use)})"
                lines.append(f"{what} {data}; set --base_path")
        return lines

    def differing_copies(self) -> list[str]:
        """Return a line if kept records have other results than those of the same runs in the results folder."""
        folders = [path.parent for path in Path(self.results_path).glob("runs/*/record.json")]
        both = [(self._finished(folder), self._finished(self.measured / folder.name)) for folder in sorted(folders)]
        pairs = [(ours, kept) for ours, kept in both if ours and kept]
        names = [ours["run"] for ours, kept in pairs if entries_of(kept, ours)["results"] != kept["results"]]
        text = f"{count_of(len(names), 'run')} with other results in {self.results_path}, which count, than in"
        return [f"{text} {self.measured}, such as {names[0]}"] if names else []

    def lacks_outcomes(self, run: Run) -> bool:
        """Return whether the run is finished in the results folder without an outcome that is asked for now."""
        record = self._finished(run.folder)
        return bool(record and missing_outcomes(run.options, record, run.folder))

    def changed_code_warnings(self) -> list[str]:
        """Return a line if some of these runs were finished in the results folder by code that has changed since."""
        finished = {run.name: (run, record) for run in self._runs.values() if (record := self._finished(run.folder))}
        changed = [run for run, record in finished.values()
                   if changed_files(record["sources"], code_digests(run.config))]  # fmt: skip
        count = f"{count_of(len(changed), 'run')} of code that has changed since; train again, such as python main.py"
        return [f"{count} {shlex.join(changed[0].command())} --rerun"] if changed else []

    def is_done(self, run: Run) -> bool:
        """Return whether the run has a record with everything that is asked for."""
        return self.record(run) is not None and not self.lacks_outcomes(run)

    def state(self, run: Run) -> str:
        if self.is_done(run):
            return DONE
        if is_locked(run.folder):
            return RUNNING
        has_other_record = (run.folder / "record.json").exists() and not self._finished(run.folder)
        if run.failure.exists() or has_other_record:
            return FAILED
        return STOPPED if any(run.folder.glob("checkpoint-*.pt")) else MISSING

    def finished_folders(self) -> dict[str, Path]:
        """Return the folder of every finished run by name: below the results folder, or else kept with the code."""
        folders = sorted((path.parent for path in self._record_paths()), key=lambda folder: folder.name)
        return {folder.name: folder for folder in folders if self._finished(folder)}

    def all_records(self) -> Iterator[dict[str, Any]]:
        """Return the record of every finished run below the results folder or kept with the code, of any preset."""
        folders = self.finished_folders().values()
        return (record for folder in folders if (record := self._finished(folder)))

    def _record_paths(self) -> list[Path]:
        kept, ours = self.measured.glob("*/record.json"), Path(self.results_path).glob("runs/*/record.json")
        return [*sorted(kept), *sorted(ours)]

    def recorded_speeds(self) -> RecordedSpeeds:
        own = {path.parent.name for path in Path(self.results_path).glob("runs/*/record.json")}
        return RecordedSpeeds((record, record["run"] not in own) for record in self.all_records())


def expected_seconds(wanted: Iterable[Run], speeds: RecordedSpeeds) -> dict[str, float | None]:
    """Return how long each run takes by the speed of similar recorded runs; None if there are none."""
    return {run.name: speeds.expected_seconds(run.config.values(), run.steps) for run in wanted}


def total_time(seconds: Iterable[float | None]) -> str:
    """Return the sum as text; "unknown", or "and more" at its end, where the time of some runs is unknown."""
    expected = list(seconds)
    known = [value for value in expected if value is not None]
    more = " and more" if len(known) < len(expected) else ""
    return f"{duration(sum(known))}{more}" if known or not expected else "unknown"
