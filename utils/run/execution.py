"""What is around the training loop: checkpoints, signals, observers and the record."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from models.method import Method
from utils.config.registry import OBSERVERS
from utils.config.resolve import Config
from utils.console import in_notebook, log
from utils.device import describe_device, pick_device, set_up_device
from utils.errors import DataMissing, RunFailed, UsageError
from utils.run.build import ABSENT, StreamBuilder, build_method, build_network, epoch_sizes, is_out_of_memory
from utils.run.code_digest import code_digests
from utils.run.expected_time import expected_time
from utils.run.observers import JsonLines, Observer, Progress, TensorBoardRun, WandbRun
from utils.run.probes import Probe, write_recording
from utils.run.records import conditions, different_conditions
from utils.run.run_folder import RunFolder
from utils.run.saved_model import save_model
from utils.run.signals import Interrupted, Signals
from utils.run.training import Training, total_steps

if TYPE_CHECKING:
    from backbone.network import Network

IMPORTS = 5e8  # bytes of memory that a process takes before it loads data, as measured
LOADING = (2.2, 1.2)  # peak of memory per byte of images: with decoding and checking, and from the cache, at most


def run_or_reuse(config: Config) -> tuple[dict[str, Any], RunFolder]:
    """Return the record of a run and its folder; a run that is not finished is trained first."""
    sources = code_digests(config)  # all code of a run is imported by now
    with Signals() as signals:
        data = StreamBuilder(config)
        folder = RunFolder(config, data.spec, sources)
        if record := folder.reuse_finished_record():
            return record, folder
        device = set_up_device(config)
        net = build_network(config, data.spec, device)
        stream = data.stream(device)
        training = Training(config, stream, build_method(config, stream.spec, net, device))
        training.signals = signals
        # No run folder is written before here: whatever is wrong with the command has been reported.
        with folder.lock():
            # Another process may have finished the run in the meantime.
            return folder.reuse_finished_record() or execute(training, folder), folder


def dry_run_report(config: Config) -> str:
    """Return folder, steps, memory and expected time of a run, as comments of a TOML file. The data may be missing."""
    try:
        spec = StreamBuilder(config).spec
    except DataMissing:
        spec = StreamBuilder(config, ABSENT).spec
    build_network(config, spec, torch.device("meta")).norms.check_device(pick_device(config.device))
    folder, sizes = RunFolder(config, spec, {}), epoch_sizes(config, spec)
    status = "finished" if folder.finished_record() else "not finished"
    steps = total_steps(config, sizes)
    tasks = f"{len(sizes)} task{'s' if len(sizes) > 1 else ''}"
    peaks = (f"{(IMPORTS + factor * spec.image_bytes) / 1e9:.1f} GB" for factor in LOADING)
    loading = f"{spec.image_bytes / 1e9:.1f} GB of images, peak of memory {' at a first start, '.join(peaks)} later"
    lines = {
        "folder": f"{folder.path} ({status})", "steps": f"{steps} in {tasks}", "loading": loading,
        "expected time": expected_time(config, steps),
    }  # fmt: skip
    return "\n".join(f"# {name}: {text}" for name, text in lines.items())


def execute(training: Training, folder: RunFolder) -> dict[str, Any]:
    """Train from the last checkpoint or from the start; return the record, finished or failed."""
    config = training.config
    state = folder.resume_or_reset()
    training.checkpoints = folder.checkpoints
    net = cast("Network", training.method.net)
    device = next(net.parameters()).device
    now = conditions(config, device) | {"norm_impl": net.norms.implementation(device)}
    before: list[dict[str, Any]] = state["conditions"] if state else []
    training.conditions = before if now in before else [*before, now]
    if before and now not in before and (what := different_conditions(now, before[-1])):
        log.warning(f"resuming under other conditions ({what}); expect a difference like that between seeds")
    training.observers = build_observers(config, training.method, len(training.stream.train_sizes), folder)
    if not config.non_verbose:
        lines = f"run {folder.name}\nfolder {folder.path}\n{describe_device(device, config)}"
        print(lines, file=sys.stderr, flush=True)
    try:
        status, outcome = "finished", training.run(state) | _write_outcomes(training, folder)
    except (UsageError, Interrupted):
        if failed := end_observers(training.observers, "on_stop"):
            log.warning(failed["reason"])
        raise
    except (Exception, SystemExit) as error:
        status, outcome = "failed", failure(error)
    record = folder.write_record(status, outcome | {"conditions": training.conditions}, training.stream.spec)
    if failed := end_observers(training.observers, "on_end", record):  # the file stays as it is
        reason = "; ".join(filter(None, [record.get("reason"), failed["reason"]]))
        return record | failed | {"status": "failed", "reason": reason}
    return record


def end_observers(observers: Sequence[Observer], hook: str, *arguments: Any) -> dict[str, Any]:
    """Call the last hook of every observer; return why one failed, or nothing."""
    failed: dict[str, Any] = {}
    for observer in observers:
        try:
            getattr(observer, hook)(*arguments)
        except (Exception, SystemExit) as error:
            failed = failure(error)
            failed["reason"] = f"{hook} of observer {observer.key} failed: {failed['reason']}"
    return failed


def failure(error: BaseException) -> dict[str, Any]:
    """Return why a run failed: the reason in one line, and the traceback of an error that nobody expected."""
    if isinstance(error, RunFailed):
        return {"reason": str(error)}
    if isinstance(error, OSError):
        return {"reason": f"{error}; make room or repair, and give the same command again to go on"}
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    if is_out_of_memory(error):
        advice = "free memory and give the same command again to go on, or make the batch or network smaller"
        return {"reason": f"out of memory ({reason[:200]}); {advice}"}
    if "without overflow" in reason:  # torch's words for a number beyond the range of its type
        return {"reason": f"{reason}; a number such as --lr is too large, make it smaller"}
    return {"reason": reason, "traceback": traceback.format_exc()}


def build_observers(config: Config, method: Method, n_tasks: int, folder: RunFolder) -> list[Observer]:
    observers: list[Observer] = [JsonLines(folder.log_path)]
    for name, options in config.probe_options.items():
        observers.append(OBSERVERS.get(name).build(method, **options))
        observers[-1].name = name
    if not config.non_verbose:
        observers.append(Progress(n_tasks, bar=sys.stderr.isatty() or in_notebook()))
    if config.tensorboard:
        observers.append(TensorBoardRun(folder.path / "tensorboard"))
    if config.wandb_project:
        observers.append(WandbRun(folder.path, config.values()))
    return observers


def _write_outcomes(training: Training, folder: RunFolder) -> dict[str, Any]:
    """Write recordings and the network; return their digests for the record."""
    digests: dict[str, Any] = {}
    if probes := [observer for observer in training.observers if isinstance(observer, Probe)]:
        digests["recordings"] = {probe.name: write_recording(folder.path, probe) for probe in probes}
    if training.config.save_model:
        digests["model_sha256"] = save_model(folder.model_path, training.method)
    else:
        folder.model_path.unlink(missing_ok=True)  # of an earlier run of this command
    return digests
