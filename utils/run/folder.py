"""The folder of a run: who may write there, what it answers without training, and whether that can be believed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

from utils.config.arguments import Config
from utils.data.stream import StreamSpec
from utils.errors import RunFailed, UsageError
from utils.files import HeldElsewhere, OwnedLock, write_json
from utils.run.checkpoints import Checkpoints
from utils.run.identity import run_folder, run_identity
from utils.run.records import BadRecord, made_on, make_record, plain, read_record
from utils.run.sources import changed_sources, shortened, sources_of


class RunFolder:
    """results/runs/<name>/ with config.json, metrics.jsonl, record.json and what else the run leaves.

    A finished record stays, and answers, until a --rerun has come to its end; the log of that attempt is kept apart.
    """

    def __init__(self, config: Config, spec: StreamSpec):
        self.config, self.identity = config, run_identity(config, spec)
        self.path = run_folder(config, spec)
        self.name = self.path.name
        self.record_path = self.path / "record.json"
        self.log_path = self.path / "metrics.jsonl"
        self.model_path = self.path / "model.safetensors"
        self.rerun_log_path = self.path / "metrics.rerun.jsonl"
        self.failed_rerun_path = self.path / "record.rerun.json"
        self.sources = sources_of(config)  # now: files may be edited while the run is under way
        self.is_again = False  # is the attempt under way that of a run that is finished?
        self.is_repeated = False  # only for recordings: its results must be those of the record
        self.before: dict | None = None  # that record

    @cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.path, self.identity, self.sources, self.config.checkpoint_every)

    @contextmanager
    def held(self) -> Iterator[None]:
        """For this process alone; raises HeldElsewhere if another has it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = OwnedLock(self.path)
        except OSError as error:
            raise UsageError(f"cannot write to {self.path}: {error.strerror}; set --results_path") from error
        except HeldElsewhere as error:
            raise HeldElsewhere(f"{self.name} is being run by {error}") from None
        try:
            yield
        finally:
            lock.release()

    # --- what it answers -------------------------------------------------------------------------------------------

    def finished_record(self) -> dict | None:
        """The record, if the run is finished and nothing is wrong with it; a failed one does not count."""
        try:
            record = read_record(self.record_path)
            if record is not None and record["identity"] != self.identity:
                raise BadRecord("it is of another run")
        except BadRecord as error:
            if self.config.rerun:
                return None
            raise UsageError(f"{self.record_path} cannot be trusted: {error}; --rerun trains again") from None
        return record if record and record["status"] == "finished" else None

    def answer(self) -> dict | None:
        """The record, if nothing more is asked for; with a word on where the numbers come from."""
        record = None if self.config.rerun else self.finished_record()
        if record is None:
            return None
        if self.config.save_model and not self.model_path.exists():
            raise UsageError("this run is finished, but its network was not kept: add --rerun to train and save it")
        changed = changed_sources(record["sources"], self.sources)
        if changed and not (self.config.accept_changed_code or self.config.restart_changed_code):
            raise UsageError(
                f"this run was finished {made_on(record)} by code that has changed since: {shortened(changed)}; "
                "--rerun trains it again, --accept_changed_code takes the old number"
            )
        if self.lacking(record):
            return None
        print(f"note: finished {made_on(record)}, not trained again", file=sys.stderr)
        if changed:
            print(f"note: by code that has changed since: {shortened(changed)}", file=sys.stderr)
        self._tidy(record)
        return record

    def lacking(self, record: dict) -> list[str]:
        """The recordings that are asked for and not there."""
        if not self.config.probe:
            return []
        from utils.run.probes import has_recording

        return [name for name in self.config.probe if not has_recording(self.path, name, record)]

    def _unrecorded(self, state: dict) -> list[str]:
        """Of those, what a checkpoint has not recorded up to its step."""
        if not self.config.probe:
            return []
        from utils.run.probes import PROBES

        return [name for name in self.config.probe if PROBES[name].__name__ not in state["observers"]]

    def recordings(self) -> dict[str, str]:
        """Of the attempt before, where this one repeats it."""
        return dict(self.before.get("recordings", {})) if self.is_repeated else {}

    def agrees(self, outcome: dict) -> bool:
        """Did the repeated attempt come to the results of the one before? It may say more about them."""
        now, before = json.loads(json.dumps(outcome["results"])), self.before["results"]
        return now.keys() == before.keys() and all(before[name].items() <= now[name].items() for name in before)

    def _tidy(self, record: dict) -> None:
        """What a run that was killed right after its record has left; an interrupted --rerun is not among it."""
        step = self.checkpoints.interrupted_after(record["attempt"])
        if step is not None:
            print(f"note: a --rerun of it was interrupted at step {step}; --rerun goes on with it", file=sys.stderr)
        elif self.checkpoints.paths():  # of the attempt that the record is of
            with suppress(HeldElsewhere, UsageError, OSError), self.held():
                self._clean_up()

    # --- an attempt --------------------------------------------------------------------------------------------------

    def begin(self) -> dict | None:
        """Say what runs here; returns the state that this attempt goes on from, None if it starts from the beginning.

        The record of a failed attempt no longer holds; a finished one does, until there is another.
        """
        finished, config = self.finished_record(), self.config
        self.before, self.is_again = finished, finished is not None
        self.is_repeated = self.is_again and not config.rerun
        if self.is_repeated:
            lacking = ", ".join(self.lacking(finished))
            print(f"note: finished {made_on(finished)}, trained again to record {lacking}", file=sys.stderr)
        state = self.checkpoints.take_up(
            after=finished["attempt"] if finished else 0,
            rerun=config.rerun or self.is_again,
            accept=config.accept_changed_code,
            restart=config.restart_changed_code,
        )
        if state is not None and (unrecorded := self._unrecorded(state)):
            print(f"note: starts over: its checkpoint has no recording of {', '.join(unrecorded)}", file=sys.stderr)
            state = self.checkpoints.remove()
        if state is not None:
            print(f"note: goes on from step {self.checkpoints.last_step}", file=sys.stderr)
        write_json(self.path / "config.json", plain(config))
        self.failed_rerun_path.unlink(missing_ok=True)
        if not self.is_again:
            self.record_path.unlink(missing_ok=True)
            self._adopt_log_of_rerun()
        return state

    @property
    def log_of_attempt(self) -> Path:
        return self.rerun_log_path if self.is_again else self.log_path

    def path_of_record(self, status: str) -> Path:
        return self.failed_rerun_path if self.is_again and status == "failed" else self.record_path

    def end(self, status: str, outcome: dict, spec: StreamSpec) -> dict:
        """Write the record. That of a --rerun that failed leaves the finished one in its place."""
        about = {"attempt": self.checkpoints.attempt["number"]}
        if self.checkpoints.code_changes:
            about["code_changes"] = self.checkpoints.code_changes
        record = make_record(self.name, self.identity, self.sources, self.config, spec, status, outcome | about)
        path = self.path_of_record(status)
        try:
            write_json(path, record)
        except OSError as error:
            if status == "finished":
                raise RunFailed(
                    f"cannot write {path}: {error.strerror}; make room and give the command again"
                ) from error
            record["reason"] += f" (and no room for a record: {error.strerror})"
        if status == "finished":
            self._clean_up()
        return record

    def _clean_up(self) -> None:
        """What is of no use beside a finished record. Killed here, the next command goes on with it: as long as there
        are checkpoints."""
        self._adopt_log_of_rerun()
        self.checkpoints.remove()

    def _adopt_log_of_rerun(self) -> None:
        if self.rerun_log_path.exists():
            self.rerun_log_path.replace(self.log_path)
