"""Observers watch a run without changing it. The loop tells each of them its position and what it measured."""

from __future__ import annotations

import io
import json
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from utils.console import log
from utils.errors import UsageError
from utils.files import reject_links
from utils.packages import import_or_usage_error
from utils.step import Step
from utils.tables import TITLES, percent

Event = dict[str, Any]  # has at least `step` and `task`
SECONDS_LIMIT = 120.0  # that a call of an external viewer may take


class Observer:
    """Watches a run. Every method is optional, and none may change the run.

    `--probe NAME` adds an observer that is registered under this name.

    Args:
        method: The method, with its network (`method.net`).
        options: The observer's own options, by name.

    Example:
        >>> @OBSERVERS.register("weight_norm", help="length of all weights together")
        ... class WeightNorm(Observer):
        ...     def scalars(self):
        ...         return {"length": nn.utils.get_total_norm(self.method.net.parameters())}
    """

    name = ""  #: the name that it is registered under
    needs_hooks = True  #: False if it needs no hooks of layers and no norms' results: it works with `--compile`, too

    def __init__(self, method: Any = None):
        self.method = method

    @property
    def key(self) -> str:
        """What its scalars and its state in a checkpoint are called."""
        return self.name or type(self).__name__

    def on_start(self, total_steps: int, done_steps: int) -> None: ...

    def on_step(self, step: Step) -> None:
        """See a step right after it; do not store it, nor read a value of the device, which would make the host wait.

        `--replay_iters` makes several steps of a batch.
        """

    def scalars(self) -> dict[str, Any]:
        """Return numbers or tensors of one number by name, for every line of the log (`--log_every`).

        They go to metrics.jsonl, TensorBoard and Weights & Biases as `OBSERVER/NAME`. What is summed up since the last
        line belongs into `state_dict`.
        """
        return {}

    def on_log(self, event: Event) -> None: ...

    def on_mid_task_eval(self, event: Event) -> None:
        """See an evaluation while a task is trained (`--eval_every`)."""

    def on_evaluation(self, event: Event) -> None:
        """See the evaluation at the end of a task."""

    def on_end(self, record: Event) -> None:
        self.on_stop()

    def on_stop(self) -> None:
        """Clean up when the run ends, or the process before it."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: plain types and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Progress(Observer):
    """Loss, task, speed and time left: a bar in a terminal, otherwise a line per task and every `seconds`."""

    line_format = "step {n_fmt}/{total_fmt}, {rate_noinv_fmt}, {remaining} left"
    bar: Any = None

    def __init__(self, n_tasks: int, *, bar: bool, seconds: float = 60.0):
        self.n_tasks, self.has_bar, self.seconds, self.loss = n_tasks, bar, seconds, ""

    def on_start(self, total_steps: int, done_steps: int) -> None:
        from tqdm.auto import tqdm  # a widget in a notebook

        settings = {"file": sys.stderr} if self.has_bar else {"file": io.StringIO(), "bar_format": self.line_format}
        self.bar = tqdm(total=total_steps, initial=done_steps, unit="step", dynamic_ncols=True, **settings)
        self.printed = time.monotonic()

    def on_step(self, step: Step) -> None:
        self.bar.update(step.index.last)
        if not self.has_bar and time.monotonic() - self.printed >= self.seconds:
            self._print_line(step.index.task, self.loss)

    def on_log(self, event: Event) -> None:
        self.loss = "" if event["loss"] is None else f", loss {event['loss']:.3f}"
        self.bar.set_postfix_str(f"task {event['task'] + 1}/{self.n_tasks}{self.loss}", refresh=False)

    def on_evaluation(self, event: Event) -> None:
        if not self.has_bar:
            means = (f", {TITLES[setting]} {percent(mean)} %" for setting, mean in event["mean"].items())
            self._print_line(event["task"], "".join(means))

    def _print_line(self, task: int, details: str) -> None:
        self.printed = time.monotonic()
        print(f"task {task + 1}/{self.n_tasks}{details}, {self.bar}", file=sys.stderr, flush=True)

    def on_stop(self) -> None:
        if self.bar is not None:
            self.bar.close()


class JsonLines(Observer):
    """metrics.jsonl: one event per line. A resumed run first drops the lines after its checkpoint."""

    def __init__(self, path: Path):
        self.path, self.position, self.started = path, 0, time.monotonic()

    def on_start(self, total_steps: int, done_steps: int) -> None:
        with open(self.path, "ab") as file:
            file.truncate(min(self.position, file.tell()))

    def _write(self, kind: str, event: Event) -> None:
        line = {"event": kind, **event, "seconds": round(time.monotonic() - self.started, 3)}
        with open(self.path, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            self.position = file.tell()

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "seconds": time.monotonic() - self.started}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.started = state["position"], time.monotonic() - state["seconds"]

    def on_log(self, event: Event) -> None:
        self._write("log", event)

    def on_mid_task_eval(self, event: Event) -> None:
        self._write("point", event)

    def on_evaluation(self, event: Event) -> None:
        self._write("evaluation", event)


def read_log(folder: Path) -> list[Event]:
    """Return the events of a run's log; none, with a warning, if it is missing, a link, or not as it was written."""
    path = folder / "metrics.jsonl"
    try:
        reject_links(path)
        events = [json.loads(line) for line in path.read_bytes().splitlines()]
        if not all(isinstance(event, dict) and {"event", "step"} <= event.keys() for event in events):
            raise ValueError("a line is no event")
    except (OSError, ValueError) as error:
        log.warning(f"the log {path} is left out: {error}")
        return []
    return events


def call_within_limit(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a function in a thread; raise TimeoutError, and leave the thread behind, if it takes too long."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call(*arguments, **keywords))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    if not wait([future], SECONDS_LIMIT).done:
        raise TimeoutError(f"no answer in {SECONDS_LIMIT:g} s")
    return future.result()


class ExternalLogger(Observer):
    """Curves for an external viewer. Once it has started, none of its errors ends the run."""

    title: str
    has_failed = has_hung = False

    def send(self, values: dict[str, float], step: int) -> None:
        raise NotImplementedError

    def attempt(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Call a function of the viewer; only the first error prints a warning. One that hangs is left alone."""
        if self.has_hung:
            return None
        try:
            return call_within_limit(call, *arguments, **keywords)
        except Exception as error:
            if not self.has_failed:
                log.warning(f"{self.title}: {_one_line(error)}; the run goes on, and its own log is complete")
            self.has_failed, self.has_hung = True, isinstance(error, TimeoutError)

    def on_log(self, event: Event) -> None:
        names = ("loss", "task", "lr", "prequential")
        values = {name: event[name] for name in names if event.get(name) is not None}
        values |= {f"loss/{name}": value for name, value in event["terms"].items()}
        values |= event.get("scalars", {})
        self.attempt(self.send, values, event["step"])

    def on_mid_task_eval(self, event: Event) -> None:
        values = {f"{setting}/while_training": mean for setting, mean in event["mean"].items()}
        self.attempt(self.send, values, event["step"])

    def on_evaluation(self, event: Event) -> None:
        values = {"task": event["task"]}
        for setting, row in event["accuracy"].items():
            values |= {f"{setting}/task_{j + 1}": value for j, value in enumerate(row)}
            values[f"{setting}/mean"] = event["mean"][setting]
        self.attempt(self.send, values, event["step"])


class TensorBoardRun(ExternalLogger):
    """Curves for TensorBoard in the run's folder. A resumed run overwrites the curves after its checkpoint."""

    title = "TensorBoard"
    writer: Any = None

    def __init__(self, folder: Path):
        self.folder = folder
        self.module = import_or_usage_error("torch.utils.tensorboard", "--tensorboard", "tensorboard")

    def on_start(self, total_steps: int, done_steps: int) -> None:
        if not done_steps:
            shutil.rmtree(self.folder, ignore_errors=True)  # of an earlier attempt
        self.writer = self.attempt(self.module.SummaryWriter, str(self.folder), purge_step=done_steps + 1)

    def send(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def on_stop(self) -> None:
        if self.writer:
            self.attempt(self.writer.close)


class WandbRun(ExternalLogger):
    """Weights & Biases. A resumed run continues its page, whose id its checkpoint has, and sends no step twice."""

    title = "Weights & Biases"
    run: Any = None

    def __init__(self, folder: Path, config: dict[str, Any]):
        self.wandb = import_or_usage_error("wandb", "--wandb_project")
        self.folder, self.config = folder, config
        self.id = f"{folder.name.rsplit('-', 1)[-1]}-{uuid.uuid4().hex[:8]}"

    def state_dict(self) -> dict[str, Any]:
        return {"id": self.id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.id = state.get("id", self.id)

    def on_start(self, total_steps: int, done_steps: int) -> None:
        page = {"project": self.config["wandb_project"], "entity": self.config["wandb_entity"], "id": self.id}
        about = {"name": self.folder.name, "notes": self.config["notes"], "config": self.config}
        try:
            keywords = {"dir": str(self.folder), "resume": "allow", "settings": {"finish_timeout": SECONDS_LIMIT / 2}}
            self.run = call_within_limit(self.wandb.init, **page, **about, **keywords)
        except Exception as error:  # of wandb, its settings or the system
            advice = "log in with `wandb login`, set WANDB_MODE=offline, or remove the flag"
            raise UsageError(f"--wandb_project: {self.title} does not start ({_one_line(error)}); {advice}") from error

    def send(self, values: dict[str, float], step: int) -> None:
        if step >= self.run.step:
            self.run.log(values, step=step)

    def on_end(self, record: Event) -> None:
        for setting, result in record.get("results", {}).items():
            summary = {f"{setting}/{name}": value for name, value in result["metrics"].items()}
            self.attempt(self.run.summary.update, summary)
        self.attempt(self.run.finish, exit_code=0 if record["status"] == "finished" else 1)

    def on_stop(self) -> None:
        if self.run:
            self.attempt(self.run.finish, exit_code=1)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
