"""A run under way: checkpoints, signals, observers and the record around the training loop."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import torch

from utils.errors import RunFailed, UsageError
from utils.run.checkpoints import Checkpoints
from utils.run.observers import build_observers
from utils.run.records import RunFolder, make_record, run_identity
from utils.run.saved_model import save_model
from utils.run.signals import Interrupted
from utils.run.training import Training


def execute(training: Training, folder: RunFolder) -> dict[str, Any]:
    """Train from the last checkpoint or from the start; returns the record, finished or failed."""
    config, spec = training.config, training.stream.spec
    checkpoints = Checkpoints(folder.path, run_identity(config, spec), config.checkpoint_every)
    if config.rerun:
        checkpoints.remove()
    state = checkpoints.load()
    try:
        folder.begin(config)
    except OSError as error:
        raise RunFailed(f"cannot write to {folder.path}: {error.strerror}; make room and try again") from error
    threads = [torch.get_num_threads()] if state is None else _noted_threads(state["thread_counts"])
    training.checkpoints, training.thread_counts = checkpoints, threads
    training.observers = build_observers(config, len(training.stream.train_sizes), folder, fresh=state is None)
    status, outcome = _attempt(training, state)
    if status == "finished" and config.save_model:
        try:
            save_model(folder.model_path, training.method)
        except OSError as error:
            status, outcome = "failed", {"reason": f"cannot write {folder.model_path}: {error.strerror}; make room"}
    record = make_record(folder, config, spec, status, outcome | {"thread_counts": threads})
    if status == "finished":
        checkpoints.remove()
    for observer in training.observers:
        observer.on_end(record)
    return record


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


def _noted_threads(before: list[int]) -> list[int]:
    now = torch.get_num_threads()
    if now in before:
        return before
    print(
        f"warning: resuming with {now} threads a run that had {', '.join(map(str, before))}: "
        "results may differ in the last bits; --num_threads keeps the count",
        file=sys.stderr,
    )
    return [*before, now]
