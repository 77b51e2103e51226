"""Single runs: from an experiment and a seed to a command, its folder, and what became of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from scripts.reproduce.plans import Experiment
from scripts.reproduce.presets import Preset
from scripts.reproduce.trial import Trial, try_out
from utils.config.arguments import Config, resolve
from utils.config.registry import DATASETS, NORMS
from utils.errors import DataMissing
from utils.files import OwnedLock
from utils.run.build import ABSENT, Data, epoch_sizes
from utils.run.identity import run_folder
from utils.run.probes import has_recording
from utils.run.records import BadRecord, read_record
from utils.run.training import total_steps

DONE, FAILED, RUNNING, STOPPED, MISSING = "done", "failed", "running", "stopped", "missing"
MEASURED = Path(__file__).resolve().parents[2] / "results" / "measured"  # records that are kept with the code


@dataclass(frozen=True)
class Run:
    """One command of `main.py`, as plain data: what launchers pass around."""

    name: str
    options: tuple[tuple[str, Any], ...]
    folder: Path
    steps: int

    def launched(self) -> list[str]:
        """The words after `main.py` in a sweep."""
        return [*self.command(), "--non_verbose", "--restart_changed_code"]

    def command(self) -> list[str]:
        """The words after `main.py`."""
        words = []
        for name, value in self.options:
            if isinstance(value, tuple | list):
                value = value if name == "plugins" else [",".join(value)]
            words += [f"--{name}", *(map(str, value) if isinstance(value, tuple | list) else [str(value)])]
        return words

    def anywhere(self) -> Run:
        """The same run with paths, given or default, that hold in every working directory."""
        values = resolve(self.known_options).values()
        paths = {name: str(Path(values[name]).resolve()) for name in ("base_path", "results_path") if name in values}
        options = self.known_options | paths
        return replace(self, options=tuple(options.items()), folder=self.folder.resolve())

    @property
    def probes(self) -> tuple[str, ...]:
        return tuple(self.known_options.get("probe", ()))

    def with_probes_of(self, other: Run | None) -> Run:
        """The same run, recording also what the other does."""
        probes = tuple(sorted({*self.probes, *(other.probes if other else ())}))
        if probes == self.probes:
            return self
        return replace(self, options=tuple((self.known_options | {"probe": probes}).items()))

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    @property
    def failure(self) -> Path:
        """Why a sweep gave up on it; gone when it is tried again."""
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
        self.num_threads = num_threads  # the same for all, so that bits do not depend on how many run at a time
        self.untrusted: dict[Path, str] = {}  # records that do not count, and why
        self._specs: dict[tuple, Any] = {}
        self._records: dict[str, dict] = {}

    # --- what to run -------------------------------------------------------------------------------------------

    def of(self, experiment: Experiment, seed: int, **more: Any) -> Run:
        """The run of an experiment with a seed; `more` are further flags."""
        return self.run_with(self.options(experiment, seed, **more))

    def options(self, experiment: Experiment, seed: int, **more: Any) -> dict[str, Any]:
        """The flags of a run, as main.py takes them."""
        of_data, further = self.preset.data[experiment.data].flags, dict(experiment.flags) | more
        dataset = DATASETS.get((of_data | further)["dataset"])
        of_preset = {} if "backbone" in dataset.traits else self.preset.flags  # which are of the ResNet
        options = {"model": experiment.model, "norm": experiment.norm, **of_preset, **of_data}
        if experiment.buffer is not None:
            options["buffer_size"] = experiment.buffer
        options |= further | {"seed": seed}
        if not NORMS.get(options["norm"]).has_option("groups"):
            options.pop("groups", None)
        if self.base_path is not None and dataset.has_option("base_path"):
            options["base_path"] = self.base_path
        if self.plugins:
            options["plugins"] = self.plugins
        if self.results_path != "results":
            options["results_path"] = self.results_path
        return options | {"num_threads": self.num_threads}

    def n_tasks(self, experiment: Experiment) -> int:
        return self._spec(resolve(self.options(experiment, self.preset.seeds[0]))).n_tasks

    def run_with(self, options: dict[str, Any]) -> Run:
        config = resolve(options)
        spec = self._spec(config)
        folder = run_folder(config, spec)
        steps = total_steps(config, epoch_sizes(config, spec))
        return Run(folder.name, tuple(options.items()), folder, steps)

    def _spec(self, config: Config):
        """Specs of folders cost a look at all their files; runs of the same data share one."""
        own = ["start_from", "stop_after", *(option.name for option in DATASETS.get(config.dataset).options)]
        key = (config.dataset, *(str(getattr(config, name)) for name in sorted(own)))
        if key not in self._specs:
            try:
                self._specs[key] = Data(config).spec
            except DataMissing:
                self._specs[key] = Data(config, self._fingerprint_in_records(config.dataset)).spec
        return self._specs[key]

    def _fingerprint_in_records(self, dataset: str) -> str:
        """Where the data are not at hand: that of all records of it, which are all that can be shown."""
        known = {r["identity"]["data"] for r in self.all_records() if r["identity"]["dataset"] == dataset}
        return known.pop() if len(known) == 1 else ABSENT

    def config(self, run: Run) -> Config:
        return resolve(run.known_options)

    def spec(self, run: Run):
        return self._spec(self.config(run))

    # --- what became of it -------------------------------------------------------------------------------------

    def record(self, run: Run) -> dict | None:
        """The record of a finished run, of the results folder or of those kept with the code."""
        if run.name not in self._records:
            record = self._finished(run.folder) or self._finished(self.measured / run.name)
            if record is not None:
                self._records[run.name] = record
        record = self._records.get(run.name)
        if record is None or all(has_recording(run.folder, probe, record) for probe in run.probes):
            return record
        return self._with_recordings(run)

    def record_path(self, run: Run) -> Path:
        """Where the record of a finished run lies."""
        own = run.folder / "record.json"
        return own if self._finished(run.folder) is not None else self.measured / run.name / "record.json"

    def _with_recordings(self, run: Run) -> dict | None:
        """The record as it is now, if it has what the run records: a run may have been repeated for that."""
        record = self._finished(run.folder)
        if record is None or not all(has_recording(run.folder, probe, record) for probe in run.probes):
            return None
        self._records[run.name] = record
        return record

    def _finished(self, folder: Path) -> dict | None:
        """One that cannot be trusted is none: reports name it, and the run itself says what to do about it."""
        path = folder / "record.json"
        try:
            record = read_record(path)
        except BadRecord as error:
            self.untrusted[path] = str(error)
            return None
        return record if record and record["status"] == "finished" else None

    def state(self, run: Run) -> str:
        if self.record(run) is not None:
            return DONE
        if not run.folder.exists():
            return MISSING
        if OwnedLock.is_held(run.folder):
            return RUNNING
        unrecorded = self._finished(run.folder) is not None  # finished, and to be repeated for its recordings
        if run.failure.exists() or (not unrecorded and (run.folder / "record.json").exists()):
            return FAILED
        return STOPPED if any(run.folder.glob("checkpoint-*.pt")) else MISSING

    def all_records(self) -> Iterator[dict]:
        """Every finished run below the results folder or kept with the code, of whatever preset."""
        found = {path.parent.name: path.parent for path in self.measured.glob("*/record.json")}
        found |= {path.parent.name: path.parent for path in Path(self.results_path).glob("runs/*/record.json")}
        for name in sorted(found):
            if (record := self._finished(found[name])) is not None:
                yield record


def progress_of(run: Run) -> tuple[int, int, float] | None:
    """(task, step, steps per second) of a run under way, from the end of its log."""
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


class Speed:
    """Seconds that a run will take, by the nearest finished ones: same data and width, if possible same method. Where
    there are none, by a few steps of one such run."""

    LEVELS = (
        ("dataset", "num_filters", "model", "norm"),
        ("dataset", "num_filters", "model"),
        ("dataset", "num_filters"),
    )
    TRIED = ("dataset", "num_filters", "backbone", "image_size")

    def __init__(self, runs: Runs):
        self.runs = runs
        self.measured: dict[tuple, list[float]] = {}
        self.trials: dict[tuple, Trial | None] = {}
        for record in runs.all_records():
            for level in self.LEVELS:
                key = self._key(record["config"], level)
                self.measured.setdefault(key, []).append(record["wall_seconds"] / max(record["steps"], 1))

    @staticmethod
    def _key(options: dict[str, Any], level: tuple[str, ...]) -> tuple:
        return tuple(str(options.get(name)) for name in level)

    def seconds(self, run: Run) -> float | None:
        """None if nothing comparable has been measured, nor can be."""
        config = self.runs.config(run)
        for level in self.LEVELS:
            if times := self.measured.get(self._key(config.values(), level)):
                return run.steps * float(np.median(times))
        key = self._key(config.values(), self.TRIED)
        if key not in self.trials:
            self.trials[key] = try_out(config, self.runs.spec(run), self.runs.num_threads)
        trial = self.trials[key]
        return None if trial is None else run.steps * trial.seconds_per_step(config.batch_size)

    def about_trials(self) -> list[str]:
        """Where numbers rest on them: for a line each."""
        found: dict[str, set[str]] = {}
        for key, trial in self.trials.items():
            if trial is not None:
                found.setdefault(str(trial), set()).add(key[0])
        return [
            f"{', '.join(sorted(names))}: nothing comparable has been run yet; {how}" for how, names in found.items()
        ]
