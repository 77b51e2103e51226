"""A run under way: checkpoints, signals, observers and the record around the training loop."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from utils.errors import RunFailed, UsageError
from utils.run.folder import RunFolder
from utils.run.observers import build_observers
from utils.run.records import conditions
from utils.run.saved_model import save_model
from utils.run.signals import Interrupted
from utils.run.training import Training


def execute(training: Training, folder: RunFolder) -> dict[str, Any]:
    """Train from the last checkpoint or from the start; returns the record, finished or failed."""
    config, spec = training.config, training.stream.spec
    try:
        state = folder.begin()
    except OSError as error:
        raise RunFailed(f"cannot write to {folder.path}: {error.strerror}; make room and try again") from error
    training.checkpoints = folder.checkpoints
    now = conditions(training.method.net) | {"compile": training.method.compiled is not None}
    training.conditions = _noted(now, state["conditions"] if state else [])
    n_tasks = len(training.stream.train_sizes)
    training.observers = build_observers(config, training.method, n_tasks, folder, fresh=state is None)
    if not config.non_verbose:
        print(f"run {folder.name}\nfolder {folder.path}", file=sys.stderr, flush=True)
    status, outcome = _attempt(training, state)
    for further in (_with_recordings, _with_model):
        if status == "finished":
            status, outcome = further(training, folder, outcome)
    record = folder.end(status, outcome | {"conditions": training.conditions}, spec)
    for observer in training.observers:
        observer.on_end(record)
    return record


def _with_recordings(training: Training, folder: RunFolder, outcome: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Those of this attempt, and those that a run repeated for them had before: they are of the same steps."""
    if folder.is_repeated and not folder.agrees(outcome):
        return "failed", {
            "reason": "repeated for its recordings, the run came to other results than its record has, perhaps under "
            "other conditions (threads, device, versions); --rerun replaces the record"
        }
    config, recordings = training.config, folder.recordings()
    if config.probe:
        from utils.run.probes import Probe, write_recording

        try:
            probes = [observer for observer in training.observers if isinstance(observer, Probe)]
            recordings |= {probe.name: write_recording(folder.path, probe) for probe in probes}
        except OSError as error:
            return "failed", {"reason": f"cannot write recordings to {folder.path}: {error.strerror}; make room"}
    return "finished", outcome | ({"recordings": recordings} if recordings else {})


def _with_model(training: Training, folder: RunFolder, outcome: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    try:
        if training.config.save_model:
            save_model(folder.model_path, training.method)
        elif folder.model_path.exists():
            print(f"note: {folder.model_path} was of an earlier attempt and is removed", file=sys.stderr)
            folder.model_path.unlink()
    except OSError as error:
        return "failed", {"reason": f"cannot write {folder.model_path}: {error.strerror}; make room"}
    return "finished", outcome


def _attempt(training: Training, state: dict | None) -> tuple[str, dict[str, Any]]:
    try:
        return "finished", training.run(state)
    except (UsageError, Interrupted):
        for observer in training.observers:
            observer.on_stop()
        raise
    except RunFailed as error:
        return "failed", {"reason": str(error)}
    except OSError as error:
        return "failed", {"reason": f"{error}; make room or repair, and give the same command again to go on"}
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return "failed", {"reason": reason, "traceback": traceback.format_exc()}


def _noted(now: dict[str, Any], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All conditions that a run has been under; a change of them is said."""
    before = [{"compile": False} | one for one in before]  # which was not always noted
    if now in before:
        return before
    if before:
        differing = ", ".join(
            f"{name} {value} instead of {before[-1][name]}" for name, value in now.items() if value != before[-1][name]
        )
        print(
            f"warning: goes on with {differing}: rounding differs from here on, which training amplifies to other "
            "accuracies, as another seed would",
            file=sys.stderr,
        )
    return [*before, now]
