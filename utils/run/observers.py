"""Observers: what watches a run without touching it. The loop tells each of them where it is and what it measured."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models.method import Method
from utils.config.arguments import Config
from utils.errors import UsageError
from utils.files import write_json
from utils.packages import needed
from utils.run.folder import RunFolder
from utils.run.signals import Interrupted
from utils.step import Step
from utils.tables import TITLES, duration, percent


class Observer:
    """Every method is optional. Events are plain dictionaries with at least `step` and `task`."""

    def on_start(self, total_steps: int, done_steps: int) -> None: ...

    def on_step(self, step: Step) -> None:
        """Right after it happened; what it holds is gone with the next. Where a batch makes several (`--replay_iters`),
        each is told, with its `place.iteration`; all that counts steps counts batches."""

    def on_log(self, event: dict[str, Any]) -> None: ...

    def on_point(self, event: dict[str, Any]) -> None:
        """An evaluation while a task is trained, with `--eval_every`."""

    def on_evaluation(self, event: dict[str, Any]) -> None:
        """At the end of a task."""

    def on_end(self, record: dict[str, Any]) -> None: ...

    def on_stop(self) -> None:
        """The process ends before the run does."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold so that the observer can go on from there; plain types and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ProgressBar(Observer):
    """Loss, task, speed and time left on standard error, where that is a terminal."""

    def __init__(self, n_tasks: int):
        self.n_tasks = n_tasks
        self.bar = None

    def on_start(self, total_steps, done_steps):
        from tqdm import tqdm

        self.bar = tqdm(total=total_steps, initial=done_steps, unit="step", dynamic_ncols=True, file=sys.stderr)

    def on_step(self, step):
        self.bar.update(step.place.last)

    def on_log(self, event):
        loss = "" if event["loss"] is None else f", loss {event['loss']:.3f}"
        self.bar.set_postfix_str(f"task {event['task'] + 1}/{self.n_tasks}{loss}")

    def on_end(self, record):
        self.on_stop()

    def on_stop(self):
        if self.bar:
            self.bar.close()


class ProgressLines(Observer):
    """The same where standard error is no terminal: a line at the end of every task, and in between one a minute."""

    def __init__(self, n_tasks: int, every: float = 60.0):
        self.n_tasks, self.every, self.loss = n_tasks, every, ""

    def on_start(self, total_steps, done_steps):
        self.total, self.first, self.done = total_steps, done_steps, done_steps
        self.started = self.said = time.monotonic()

    def on_step(self, step):
        self.done = step.place.step + 1
        if time.monotonic() - self.said >= self.every:
            self._say(step.place.task, self.loss)

    def on_log(self, event):
        self.loss = "" if event["loss"] is None else f", loss {event['loss']:.3f}"

    def on_evaluation(self, event):
        means = (f", {TITLES[setting]} {percent(mean)} %" for setting, mean in event["mean"].items())
        self._say(event["task"], "".join(means))

    def _say(self, task: int, more: str) -> None:
        self.said = time.monotonic()
        speed = (self.done - self.first) / max(self.said - self.started, 1e-9)
        left = f", {duration((self.total - self.done) / speed)} left" if speed else ""
        text = f"task {task + 1}/{self.n_tasks}, step {self.done}/{self.total}{more}, {speed:.1f} steps/s{left}"
        print(text, file=sys.stderr, flush=True)


class JsonLines(Observer):
    """metrics.jsonl: one event a line, each in one unbuffered write, so that a crash leaves whole lines.

    A run that starts afresh starts a new file; a resumed one first drops the lines after its checkpoint.
    """

    def __init__(self, path: Path):
        self.path = path
        self.file = None
        self.position = 0
        self.started = time.monotonic()

    def on_start(self, total_steps, done_steps):
        self.file = open(self.path, "ab+", buffering=0)  # noqa: SIM115 (held open for the whole run)
        found = self.file.seek(0, os.SEEK_END)
        if found < self.position:
            print(f"warning: {self.path} has lost lines since the checkpoint; it goes on without them", file=sys.stderr)
            self.file.seek(0)
            self.position = self.file.read().rfind(b"\n") + 1
        self.file.truncate(self.position)

    def _write(self, kind: str, event: dict[str, Any]) -> None:
        line = {"event": kind, **event, "seconds": round(time.monotonic() - self.started, 3)}
        data = json.dumps(line).encode() + b"\n"
        try:
            if self.file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(self.path))
        except OSError:
            self.file.truncate(self.position)  # no half line
            raise
        self.position += len(data)

    def state_dict(self):
        return {"position": self.position, "seconds": time.monotonic() - self.started}

    def load_state_dict(self, state):
        self.position = state["position"]
        self.started = time.monotonic() - state["seconds"]

    def on_log(self, event):
        self._write("log", event)

    def on_point(self, event):
        self._write("point", event)

    def on_evaluation(self, event):
        self._write("evaluation", event)

    def on_end(self, record):
        if self.file:
            self.file.close()


class Page(Observer):
    """A display of the run by others. Once it has begun, nothing that befalls it ends the run."""

    title: str
    lost = False

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Interrupted:
            raise
        except Exception as error:
            if not self.lost:
                print(
                    f"warning: {self.title}: {_in_one_line(error)}; the run goes on without it, "
                    "and its log and record have everything",
                    file=sys.stderr,
                )
            self.lost = True


class TensorBoardRun(Page):
    """Curves for TensorBoard, below the run's folder. A resumed run overwrites what came after its checkpoint."""

    title = "TensorBoard"

    def __init__(self, folder: Path):
        self.folder = folder
        self.module = needed("torch.utils.tensorboard", "--tensorboard", "tensorboard")
        self.writer = None

    def on_start(self, total_steps, done_steps):
        if not done_steps:
            shutil.rmtree(self.folder, ignore_errors=True)  # of an attempt before
        self._try(lambda: self._open(done_steps))

    def _open(self, done_steps: int) -> None:
        self.writer = self.module.SummaryWriter(os.fspath(self.folder), purge_step=done_steps + 1)

    def _add(self, values: dict[str, float | None], step: int) -> None:
        for name, value in values.items():
            if value is not None and self.writer and not self.lost:
                self._try(lambda name=name, value=value: self.writer.add_scalar(name, value, step))

    def on_log(self, event):
        self._add({name: event[name] for name in ("loss", "lr")}, event["step"])

    def on_point(self, event):
        self._add({f"{setting}/while_training": mean for setting, mean in event["mean"].items()}, event["step"])

    def on_evaluation(self, event):
        for setting, row in event["accuracy"].items():
            values = {f"{setting}/task_{j + 1}": value for j, value in enumerate(row)}
            self._add(values | {f"{setting}/mean": event["mean"][setting]}, event["step"])

    def on_end(self, record):
        self.on_stop()

    def on_stop(self):
        if self.writer:
            self._try(self.writer.close)


class WandbRun(Page):
    """Weights & Biases. The run's id comes from its hash, so the same command continues the same page.

    A resumed run repeats the steps since its checkpoint with the same values; a marker beside the log remembers
    how far this page has come, and those steps are not sent twice.
    """

    title = "Weights & Biases"

    def __init__(self, folder: Path, config: dict[str, Any], *, fresh: bool):
        wandb = needed("wandb", "--wandb_project")
        self.marker = folder / "wandb.json"
        state = self._marked()
        if fresh or state is None:
            state = {"attempt": (state["attempt"] if state else 0) + 1, "last": [-1, 0]}
        self.state = state
        name = folder.name
        suffix = "" if state["attempt"] == 1 else f"-{state['attempt']}"
        try:
            self.run = wandb.init(
                project=config["wandb_project"],
                entity=config["wandb_entity"],
                id=name.rsplit("-", 1)[-1] + suffix,
                name=name,
                notes=config["notes"],
                config=config,
                dir=os.fspath(folder),
                resume="allow",
            )
        except Interrupted:
            raise
        except Exception as error:  # wandb's own, its settings' or the system's
            raise UsageError(
                f"--wandb_project: Weights & Biases does not start: {_in_one_line(error)}; log in with `wandb login`, "
                "set WANDB_MODE=offline, or leave the flag out"
            ) from error

    def _marked(self) -> dict[str, Any] | None:
        try:
            state = json.loads(self.marker.read_bytes())
            if [type(number) for number in (state["attempt"], *state["last"])] != [int] * 3:
                raise ValueError
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            print(f"note: {self.marker} is damaged and does not count", file=sys.stderr)
            return None
        return state

    def _send(self, kind: int, values: dict[str, Any], step: int) -> None:
        place = [step, kind]  # an evaluation follows the last log line of its step
        if place > self.state["last"] and not self.lost:
            self._try(lambda: self._send_and_mark(values, place))

    def _send_and_mark(self, values: dict[str, Any], place: list[int]) -> None:
        self.run.log(values, step=place[0])
        self.state["last"] = place
        write_json(self.marker, self.state)

    def on_log(self, event):
        values = {name: event[name] for name in ("loss", "task", "lr") if event[name] is not None}
        self._send(0, values, event["step"])

    def on_point(self, event):
        values = {f"{setting}/while_training": value for setting, value in event["mean"].items()}
        self._send(1, values, event["step"])

    def on_evaluation(self, event):
        values = {"task": event["task"]}
        for setting, row in event["accuracy"].items():
            values |= {f"{setting}/task_{j + 1}": value for j, value in enumerate(row)}
            values[f"{setting}/mean"] = event["mean"][setting]
        self._send(1, values, event["step"])

    def on_end(self, record):
        for setting, result in record.get("results", {}).items():
            summary = {f"{setting}/{name}": value for name, value in result["metrics"].items()}
            self._try(lambda summary=summary: self.run.summary.update(summary))
        self._try(lambda: self.run.finish(exit_code=0 if record["status"] == "finished" else 1))

    def on_stop(self):
        self._try(lambda: self.run.finish(exit_code=1))


def _in_one_line(error: Exception) -> str:
    """Without pydantic's address of its manual."""
    lines = [line for line in str(error).splitlines() if "For further information" not in line]
    return " ".join(" ".join(lines).split()).rstrip(".") or type(error).__name__


def build_observers(config: Config, method: Method, n_tasks: int, folder: RunFolder, *, fresh: bool) -> list[Observer]:
    """Which of them a run has, by its options."""
    observers: list[Observer] = [JsonLines(folder.log_of_attempt)]
    if config.probe:
        from utils.run.probes import PROBES

        observers += [PROBES[name](method, config.probe_every) for name in config.probe]
    if not config.non_verbose:
        observers.append(ProgressBar(n_tasks) if sys.stderr.isatty() else ProgressLines(n_tasks))
    if config.tensorboard:
        observers.append(TensorBoardRun(folder.path / "tensorboard"))
    if config.wandb_project:
        observers.append(WandbRun(folder.path, config.values(), fresh=fresh))
    return observers
