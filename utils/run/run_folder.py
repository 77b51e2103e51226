"""The folder of a run: who may write there, whether its record can be reused, and where an interrupted run goes on."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from utils.config.resolve import Config, option_values
from utils.console import log
from utils.data.stream import StreamSpec
from utils.device import pick_device
from utils.errors import RunFailed, UsageError
from utils.files import file_errors, folder_lock, reject_links, write_json
from utils.run import records
from utils.run.checkpoints import Checkpoints
from utils.run.code_digest import changed_files, shortened
from utils.run.identity import run_folder, run_identity
from utils.run.probes import has_recording
from utils.run.records import BadRecord, read_record
from utils.run.saved_model import has_model


def has_probe(name: str, options: dict[str, Any], record: dict[str, Any], folder: Path) -> bool:
    """Return whether a finished run had an observer with the options that are given."""
    if not has_recording(folder, name, record):
        return False
    now, before = (option_values(f"probe_{name}", values) for values in (options, record["config"]))
    return all(json.loads(json.dumps(value, default=str)) == before.get(option) for option, value in now.items())


def missing_outcomes(options: dict[str, Any], record: dict[str, Any], folder: Path) -> list[str]:
    """Return the flags of the outcomes that these options ask for and a finished run lacks."""
    missing = [f"--probe {name}" for name in options.get("probe") or () if not has_probe(name, options, record, folder)]
    if options.get("final_statistics") and any("final_statistics" not in part for part in record["results"].values()):
        missing.append("--final_statistics")
    if (late := options.get("late_evaluations", 0)) > record["config"].get("late_evaluations", 0):
        missing.append(f"--late_evaluations {late}")
    if options.get("save_model") and "model_sha256" not in record:
        missing.append("--save_model")
    elif options.get("save_model") and not has_model(folder, record):
        missing.append("a sound model.safetensors")
    return missing


class RunFolder:
    """results/runs/<name>/ with config.json, metrics.jsonl, record.json and what else the run leaves.

    Checkpoints go only after the record of a finished run is written. `--rerun` keeps the record of a finished run as
    record.old.json and starts from the beginning; without a record.json, the plain command resumes it.
    """

    def __init__(self, config: Config, spec: StreamSpec, sources: dict[str, str]):
        self.config, self.sources = config, sources
        self.identity, self.path = run_identity(config, spec), run_folder(config, spec)
        self.name = self.path.name
        self.record_path = self.path / "record.json"
        self.log_path = self.path / "metrics.jsonl"
        self.model_path = self.path / "model.safetensors"
        self.checkpoints = Checkpoints(self.path, self.identity, sources, config.checkpoint_every)

    def lock(self) -> AbstractContextManager[None]:
        """Create the folder and return its lock, which raises RunLocked if another process has it."""
        with file_errors("write to", self.path, "set --results_path"):
            self.path.mkdir(parents=True, exist_ok=True)
        reject_links(self.path, *self.path.glob("*"))
        return folder_lock(self.path)

    def finished_record(self) -> dict[str, Any] | None:
        """Return the record if the run is finished and the record can be trusted."""
        try:
            with file_errors("read", self.record_path, "set --results_path"):
                record = read_record(self.record_path)
            if record is not None and record["identity"] != self.identity:
                raise BadRecord("it is of another run")
        except BadRecord as error:
            if self.config.rerun:
                return None
            raise UsageError(f"{self.record_path} cannot be trusted: {error}; --rerun trains again") from None
        return record if record and record["status"] == "finished" else None

    def reuse_finished_record(self) -> dict[str, Any] | None:
        """Return the record of a finished run, or None if it must be trained.

        Raises UsageError if the code has changed since, or if the record lacks an outcome that is asked for.
        """
        record = None if self.config.rerun else self.finished_record()
        if record is None:
            return None
        provenance = records.provenance_text(record)
        changed = changed_files(record["sources"], self.sources)
        by_changed_code = f"by code that has changed since: {shortened(changed)}"
        if changed and not self.config.accept_changed_code:
            advice = "--rerun trains it again, --accept_changed_code takes the old number"
            raise UsageError(f"this run was finished {provenance} {by_changed_code}; {advice}")
        if missing := missing_outcomes(self.config.values(), record, self.path):
            raise UsageError(f"this run was finished {provenance} without {', '.join(missing)}; add --rerun")
        log.info(f"finished {provenance}, not trained again")
        loggers = {name: getattr(self.config, name) for name in ("tensorboard", "wandb_project")}
        if ignored := [f"--{name}" for name, value in loggers.items() if value and record["config"].get(name) != value]:
            advice = f"{self.log_path.name} beside the record has the curves, --rerun trains again"
            log.info(f"{' and '.join(ignored)} ignored, because the run is finished; {advice}")
        if changed:
            log.info(by_changed_code)
        for change in record.get("code_changes", []):
            log.warning(f"this run went on with other code at step {change['step']}: {shortened(change['files'])}")
        with suppress(UsageError):  # a device that this machine lacks cannot be compared
            now = records.conditions(self.config, pick_device(self.config.device))
            texts = [records.different_conditions(now, before) for before in record["conditions"]]
            if what := "; ".join(filter(None, texts)):
                log.warning(f"today's conditions are not the record's ({what}), and may round differently")
        self.checkpoints.remove()  # of a process that was killed after it had written the record
        return record

    def resume_or_reset(self) -> dict[str, Any] | None:
        """Return the state of the checkpoint to resume from, or None to start from the beginning.

        `--rerun` removes the checkpoints before it renames the record: killed in between, it leaves a finished run.
        """
        config = self.config
        with file_errors("write to", self.path, "make room and try again", RunFailed):
            if config.rerun:
                self.checkpoints.remove()
                if self.finished_record() is not None:
                    self.record_path.replace(self.path / "record.old.json")
            state = self.checkpoints.load(accept_changed_code=config.accept_changed_code)
            probes = state.get("probes", {}) if state else {}  # older checkpoints have none
            is_changed = any(probes.get(name) != options for name, options in config.probe_options.items())
            if state and (is_changed or config.late_evaluations > state["late_evaluations"]):
                log.info("starts over: its checkpoint lacks what --probe or --late_evaluations asks for")
                self.checkpoints.remove()
                state = None
            elif state:
                log.info(f"goes on from step {self.checkpoints.last_step}")
            self.record_path.unlink(missing_ok=True)  # of a run that failed, or damaged
            write_json(self.path / "config.json", records.plain(self.config))
        return state

    def write_record(self, status: str, outcome: dict[str, Any], spec: StreamSpec) -> dict[str, Any]:
        """Write and return the record; remove the checkpoints of a finished run."""
        facts = ("n_tasks", "n_classes", "image_shape", "train_sizes", "test_sizes", "mean", "std")
        reported_on = "validation split" if getattr(self.config, "validation", None) else "test set"
        content = {
            "run": self.name,
            "status": status,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "identity": self.identity,
            "config": records.plain(self.config),
            "data": {name: getattr(spec, name) for name in facts} | {"reported_on": reported_on},
            **outcome,
            **({"code_changes": self.checkpoints.code_changes} if self.checkpoints.code_changes else {}),
            "environment": records.environment(),
            "sources": self.sources,
        }
        record: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False))  # as it will be read
        record["seal"] = records.seal_of(record)
        reason = outcome.get("reason", "make room and give the same command again")
        with file_errors("write", self.record_path, reason, RunFailed):
            write_json(self.record_path, record)
        if status == "finished":
            self.checkpoints.remove()
        return record
