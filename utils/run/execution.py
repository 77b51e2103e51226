"""A run under way: checkpoints, signals, observers and the record around the training loop."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any, cast

from utils.console import log
from utils.errors import RunFailed, UsageError
from utils.run.observers import build_observers
from utils.run.records import conditions
from utils.run.run_folder import RunFolder
from utils.run.saved_model import save_model
from utils.run.signals import Interrupted
from utils.run.training import Training

if TYPE_CHECKING:
    from backbone.network import Network


def execute(training: Training, folder: RunFolder) -> dict[str, Any]:
    """Train from the last checkpoint or from the start; return the record, finished or failed."""
    config = training.config
    try:
        state = folder.resume_or_reset()
    except OSError as error:
        raise RunFailed(f"cannot write to {folder.path}: {error.strerror}; make room and try again") from error
    training.checkpoints = folder.checkpoints
    now = conditions(cast("Network", training.method.net)) | {"compile": training.method.compiled is not None}
    training.conditions = _all_conditions(now, state["conditions"] if state else [])
    n_tasks = len(training.stream.train_sizes)
    training.observers = build_observers(config, training.method, n_tasks, folder, fresh=state is None)
    if not config.non_verbose:
        print(f"run {folder.name}\nfolder {folder.path}", file=sys.stderr, flush=True)
    status, outcome = _train(training, state, folder)
    outcome |= {"conditions": training.conditions}
    record = folder.write_record(status, outcome, training.stream.spec)
    for observer in training.observers:
        observer.on_end(record)
    return record


def _train(training: Training, state: dict[str, Any] | None, folder: RunFolder) -> tuple[str, dict[str, Any]]:
    """Return the status, and the outcome or the reason of a failure."""
    try:
        outcome = training.run(state)
        return "finished", outcome | _write_outcomes(training, folder)
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


def _write_outcomes(training: Training, folder: RunFolder) -> dict[str, Any]:
    """Write recordings and the network; return their digests for the record."""
    digests: dict[str, Any] = {}
    if training.config.probe:
        from utils.run.probes import Probe, write_recording

        probes = [observer for observer in training.observers if isinstance(observer, Probe)]
        digests["recordings"] = {probe.name: write_recording(folder.path, probe) for probe in probes}
    if training.config.save_model:
        digests["model_sha256"] = save_model(folder.model_path, training.method)
    elif folder.model_path.exists():
        log.info(f"{folder.model_path} was saved by an earlier run of this command and is removed")
        folder.model_path.unlink()
    return digests


def _all_conditions(now: dict[str, Any], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all conditions that the run has been under; warn if they have changed."""
    before = [{"compile": False} | conditions for conditions in before]  # older checkpoints lack it
    if now in before:
        return before
    if before:
        differing = ", ".join(
            f"{name} {value} instead of {before[-1][name]}" for name, value in now.items() if value != before[-1][name]
        )
        log.warning(f"resuming under other conditions ({differing}); expect a difference like that between seeds")
    return [*before, now]
