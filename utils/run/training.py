"""The training loop: tasks, epochs, batches. It knows neither the method nor the norm nor who is watching."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch

from models.method import Method
from utils.data.stream import Stream
from utils.errors import TOO_FEW_VALUES, RunFailed
from utils.run import metrics
from utils.run.evaluation import evaluate
from utils.run.final_probes import final_probes
from utils.run.signals import Signals
from utils.step import CURRENT, Batch, Place, Step

if TYPE_CHECKING:
    from utils.run.checkpoints import Checkpoints
    from utils.run.observers import Observer

DEBUG_BATCHES = 3
LOOK_BACK = 5  # steps before a divergence that tell its cause


@dataclass
class Cursor:
    """The next thing to do: this batch of this epoch of this task. `step` counts all batches so far, whatever the
    number of their iterations, and `ended` says whether the method's own end of the task is over."""

    task: int = 0
    epoch: int = 0
    batch: int = 0
    step: int = 0
    ended: bool = False


def batches_per_epoch(config, size: int) -> int:
    batches = size // config.batch_size if config.drop_last else -(-size // config.batch_size)
    return min(batches, DEBUG_BATCHES) if config.debug_mode else batches


def steps_per_task(config, size: int) -> int:
    """Of a task with so many samples in an epoch."""
    if config.n_iters is None:
        return config.n_epochs * batches_per_epoch(config, size)
    return min(config.n_iters, DEBUG_BATCHES) if config.debug_mode else config.n_iters


def total_steps(config, train_sizes: Sequence[int]) -> int:
    return sum(steps_per_task(config, size) for size in train_sizes)


@contextmanager
def explained_batches_of_one():
    """In words that say what to do about them."""
    try:
        yield
    except ValueError as error:
        if TOO_FEW_VALUES not in str(error):
            raise
        raise RunFailed(f"{error}: choose a --batch_size that leaves no batch and no draw of one image") from error


class Stopwatch:
    """Seconds spent, over all the processes that a run may take."""

    def __init__(self):
        self.before, self.started = 0.0, None

    def start(self) -> None:
        self.started = time.monotonic()

    def stop(self) -> None:
        self.before, self.started = self.seconds(), None

    def seconds(self) -> float:
        return self.before + (0.0 if self.started is None else time.monotonic() - self.started)


class Training:
    """A run from its first step, or from a checkpoint's, to its results."""

    def __init__(
        self,
        config,
        stream: Stream,
        method: Method,
        observers: Sequence[Observer] = (),
        checkpoints: Checkpoints | None = None,
        signals: Signals | None = None,
    ):
        self.config, self.stream, self.method = config, stream, method
        _ = method.optimizer  # made now: what it imports takes a while
        self.observers, self.checkpoints = observers, checkpoints
        self.signals = signals or Signals()
        self.cursor = Cursor()
        self.tasks_begun = 0
        self.conditions: list[dict] = []  # that the processes of this run have been under
        self.untrained: dict[str, list[float]] = {}
        self.rows: dict[str, list[list[float]]] = {}
        self.points: list[dict] = []  # evaluations while training, between the ends of tasks
        self.confusion: torch.Tensor | None = None  # of the last task's end
        self.training_time, self.wall_time = Stopwatch(), Stopwatch()
        device = next(method.net.parameters()).device
        self.iterations = getattr(config, "replay_iters", 1)  # steps for every batch of the stream
        # Losses since the last log line stay on the device; reading them is the only wait of the loop.
        self.losses = torch.zeros(config.log_every * self.iterations, dtype=torch.float64, device=device)
        self.penalties = torch.zeros_like(self.losses)  # the norms' part of them
        self.loss_steps: list[int] = []  # the steps that they belong to
        self.before = self.losses.new_zeros(2, 0)  # both, of the last steps before that line
        self.unlogged = 0  # batches since the last log line

    # --- the run ----------------------------------------------------------------------------------------------

    def run(self, state: dict | None = None) -> dict:
        """Train through the stream, from a checkpoint's state if there is one; returns results as plain data."""
        self.wall_time.start()
        if state is None:
            self.untrained, _ = self._evaluate(range(self.stream.spec.n_tasks))
        else:
            self.load_state_dict(state)
        self._tell("on_start", self.n_steps(), self.cursor.step)
        while self.cursor.task < len(self.stream.train_sizes):
            self._train_task()
            self._end_task()
            self._evaluate_task()
            self.cursor = Cursor(task=self.cursor.task + 1, step=self.cursor.step)
        return self._outcome()

    def n_steps(self) -> int:
        return total_steps(self.config, self.method.epoch_sizes(self.config, self.stream.spec, self.stream.train_sizes))

    def begin_task(self) -> None:
        self._grow()
        self.method.begin_task(self.cursor.task, self.stream)

    def _grow(self) -> None:
        self.method.grow()
        self.tasks_begun += 1

    def _train_task(self) -> None:
        cursor = self.cursor
        if (cursor.epoch, cursor.batch) == (0, 0):
            self.begin_task()
        self.training_time.start()
        self.method.net.train()
        with self.signals.held():
            while not cursor.ended and self._steps_left(self.method.joined(cursor.task)) > 0:
                with explained_batches_of_one():
                    self.train_epoch()
                cursor.epoch, cursor.batch = cursor.epoch + 1, 0
        self.training_time.stop()

    def _end_task(self) -> None:
        """A checkpoint before it, and one after a method's own end of a task, which may take long: a resumed run
        repeats only what was cut off, an evaluation included."""
        if self.checkpoints and self.cursor.step > self.checkpoints.last_step:
            self._save()
        self.signals.check()
        if self.cursor.ended:
            return
        own = type(self.method).end_task is not Method.end_task
        self.training_time.start()
        with explained_batches_of_one():
            self.method.end_task(self.cursor.task, self.stream)
        self.training_time.stop()
        self.cursor.ended = True
        if self.checkpoints and own:
            self._save()
            self.signals.check()

    def train_epoch(self) -> None:
        config, cursor, method = self.config, self.cursor, self.method
        lr = method.learning_rate(cursor.task, cursor.epoch)
        if lr is not None:
            for group in method.optimizer.param_groups:
                group["lr"] = lr
        joined = method.joined(cursor.task)
        left = self._steps_left(joined)
        n_batches = min(batches_per_epoch(config, self._epoch_size(joined)), left)
        batches = self.stream.batches(cursor.task, cursor.epoch, cursor.batch, joined)
        for batch in islice(batches, n_batches - cursor.batch):
            self._learn(batch)
            cursor.batch += 1
            cursor.step += 1
            self.unlogged += 1
            if self.unlogged >= config.log_every or cursor.batch == n_batches:
                self._log(lr)
            at_end = cursor.batch == left  # which is evaluated anyway
            if config.eval_every and cursor.step % config.eval_every == 0 and not at_end:
                self._evaluate_point()
            stop = self.signals.received is not None  # read once: a signal that comes later waits for the next step
            if self.checkpoints and (stop or self.checkpoints.due(cursor.step)):
                self._save()
            if stop:
                self.signals.check()

    def _epoch_size(self, joined: Batch | None) -> int:
        return self.stream.train_sizes[self.cursor.task] + (len(joined) if joined else 0)

    def _steps_left(self, joined: Batch | None) -> int:
        """Of the task, from the beginning of this epoch on."""
        size = self._epoch_size(joined)
        return steps_per_task(self.config, size) - self.cursor.epoch * batches_per_epoch(self.config, size)

    def _learn(self, batch: Batch) -> None:
        """The steps of a batch, one after the other; none but a note of it where it must be left out."""
        cursor, method = self.cursor, self.method
        for iteration in range(self.iterations):
            place = Place(cursor.task, cursor.step, cursor.epoch, iteration, iteration == self.iterations - 1)
            step = method.unless_single(len(batch), lambda place=place: method.step(batch, place))
            left_out = step is None
            step = step or Step(replace(place, last=True), {CURRENT: batch})
            self._note(step)
            self._tell("on_step", step)
            del step  # its activations, before the next ones are made
            if left_out:
                return

    def _note(self, step: Step) -> None:
        if step.loss is not None:
            self.losses[len(self.loss_steps)] = step.loss.detach()
            if "penalty" in step.losses:
                self.penalties[len(self.loss_steps)] = step.losses["penalty"].detach()
            self.loss_steps.append(step.place.step)

    # --- stopping and going on ---------------------------------------------------------------------------------

    def _save(self) -> None:
        self._check_losses()
        with self.signals.held():
            self.checkpoints.save(self.cursor.step, self.state_dict())

    def state_dict(self) -> dict:
        """Everything that the rest of the run depends on; randomness is addressed by the cursor and needs no state."""
        method = self.method
        return {
            "cursor": asdict(self.cursor),
            "tasks_begun": self.tasks_begun,
            "conditions": self.conditions,
            "net": dict(method.net.state_dict()),
            "frozen": [name for name, parameter in method.net.named_parameters() if not parameter.requires_grad],
            "optimizer": method.optimizer.state_dict(),
            "method": method.state_dict(),
            "buffer": None if method.buffer is None else method.buffer.state_dict(),
            "untrained": self.untrained,
            "rows": self.rows,
            "points": self.points,
            "losses": self.losses[: len(self.loss_steps)].tolist(),
            "penalties": self.penalties[: len(self.loss_steps)].tolist(),
            "before": self.before,
            "loss_steps": self.loss_steps,
            "unlogged": self.unlogged,
            "left_out": method.left_out,
            "observers": {type(observer).__name__: observer.state_dict() for observer in self.observers},
            "training_seconds": self.training_time.seconds(),
            "wall_seconds": self.wall_time.seconds(),
        }

    def load_state_dict(self, state: dict) -> None:
        method = self.method
        for _ in range(state["tasks_begun"]):
            self._grow()
        method.net.load_state_dict(state["net"])
        for name, parameter in method.net.named_parameters():
            parameter.requires_grad_(name not in state["frozen"])
        method.optimizer.load_state_dict(state["optimizer"])
        if method.buffer is not None:
            method.buffer.load_state_dict(state["buffer"])
        method.load_state_dict(state["method"])
        self.cursor = Cursor(**state["cursor"])
        self.untrained, self.rows, self.points = state["untrained"], state["rows"], state["points"]
        self.loss_steps, self.unlogged, method.left_out = state["loss_steps"], state["unlogged"], state["left_out"]
        # One line for all of them, should `--log_every` be smaller now.
        room = max(self.config.log_every, self.unlogged + 1) * self.iterations
        self.losses, self.penalties = self.losses.new_zeros(room), self.losses.new_zeros(room)
        for name in ("losses", "penalties"):
            getattr(self, name)[: len(self.loss_steps)] = torch.tensor(state[name], dtype=self.losses.dtype)
        self.before = state["before"].to(self.losses.device)
        for observer in self.observers:
            observer.load_state_dict(state["observers"].get(type(observer).__name__, {}))
        self.training_time.before, self.wall_time.before = state["training_seconds"], state["wall_seconds"]

    # --- what is measured --------------------------------------------------------------------------------------

    def _check_losses(self) -> np.ndarray:
        """The losses since the last log line; a run that has diverged ends here and is never saved."""
        losses = self.losses[: len(self.loss_steps)].cpu().numpy()
        if np.isfinite(losses).all():
            return losses
        bad = int(np.flatnonzero(~np.isfinite(losses))[0])
        raise RunFailed(
            f"the loss became {losses[bad]} at step {self.loss_steps[bad] + 1}, task {self.cursor.task + 1}: "
            f"the run diverged{self._remedy(bad)}"
        )

    def _latest(self, count: int) -> torch.Tensor:
        """Losses and penalties of the last steps up to that many since the log line."""
        both = torch.stack([self.losses, self.penalties])
        return torch.cat([self.before, both[:, :count]], dim=1)[:, -LOOK_BACK:]

    def _remedy(self, bad: int) -> str:
        """The steps before show whether it was the norms' penalty that grew."""
        loss, penalty = self._latest(bad).sum(dim=1).tolist()
        if penalty > loss / 2:
            weight = f" (now {self.config.lambd:g})" if hasattr(self.config, "lambd") else ""
            return f", driven by the norm's penalty; a smaller --lambd{weight} helps"
        return "; a smaller --lr may help"

    def _check_weights(self) -> None:
        """They may overflow in a step whose loss was still finite."""
        tensors = [tensor for tensor in self.method.net.state_dict().values() if tensor.is_floating_point()]
        if not torch.stack([tensor.isfinite().all() for tensor in tensors]).all():
            raise RunFailed(
                f"weights or statistics of the network are infinite or not a number after step {self.cursor.step}, "
                f"task {self.cursor.task + 1}: the run diverged; a smaller --lr may help"
            )

    def _log(self, lr: float | None) -> None:
        losses = self._check_losses()
        self.before = self._latest(len(losses))
        self.loss_steps, self.unlogged = [], 0
        self.penalties.zero_()
        event = {"step": self.cursor.step, "task": self.cursor.task, "epoch": self.cursor.epoch}
        self._tell("on_log", event | {"loss": float(losses.mean()) if len(losses) else None, "lr": lr})

    def _evaluate(self, tasks) -> tuple[dict[str, list[float]], torch.Tensor]:
        return evaluate(self.method, self.stream, tasks)

    def _evaluate_task(self) -> None:
        """After task i the tasks up to i + 1 are tested: the next one too, for forward transfer where that exists."""
        joint, last = len(self.stream.train_sizes) == 1, self.stream.spec.n_tasks
        task = self.cursor.task
        self._check_weights()
        trained = last if joint else task + 1
        results, self.confusion = self._evaluate(range(min(trained + self.method.scores_unseen_classes, last)))
        for setting, row in results.items():
            self.rows.setdefault(setting, []).append(row)
        means = {setting: metrics.mean(row[:trained]) for setting, row in results.items()}
        self._tell("on_evaluation", {"step": self.cursor.step, "task": task, "accuracy": results, "mean": means})

    def _evaluate_point(self) -> None:
        """While a task is trained, on the tasks seen so far."""
        self.training_time.stop()
        joint, task = len(self.stream.train_sizes) == 1, self.cursor.task
        results, _ = self._evaluate(range(self.stream.spec.n_tasks if joint else task + 1))
        point = {"step": self.cursor.step, "task": task, "accuracy": results}
        self.points.append(point)
        self._tell("on_point", point | {"mean": {setting: metrics.mean(row) for setting, row in results.items()}})
        self.method.net.train()
        self.training_time.start()

    def _points_by_task(self, setting: str) -> list[list[list[float]]]:
        """Those of every task and its end."""
        rows = self.rows[setting]
        found = [[point["accuracy"][setting] for point in self.points if point["task"] == i] for i in range(len(rows))]
        joint = len(self.stream.train_sizes) == 1
        return [[*within, rows[i] if joint else rows[i][: i + 1]] for i, within in enumerate(found)]

    def _outcome(self) -> dict:
        results, scored, confusion = {}, self.method.scores_unseen_classes, self.confusion.tolist()
        probed = final_probes(self.method, self.stream) if self.config.final_probes else {}
        for setting, rows in self.rows.items():
            n_tasks = self.stream.spec.n_tasks
            matrix = [row + [None] * (n_tasks - len(row)) for row in rows]
            results[setting] = {
                "matrix": matrix,
                "untrained": self.untrained[setting],
                "metrics": metrics.summary(
                    matrix, self.untrained[setting] if scored else None, self._points_by_task(setting)
                )
                | probed.get(setting, {}),
            }
            if setting != "task_il":  # where all classes compete
                results[setting] |= {"per_class": metrics.per_class(confusion), "confusion": confusion}
            if self.config.eval_every:
                results[setting]["points"] = [point | {"accuracy": point["accuracy"][setting]} for point in self.points]
        return {
            "results": results,
            "steps": self.cursor.step,
            "batches_left_out": self.method.left_out,
            "seconds": self.training_time.seconds(),
            "wall_seconds": self.wall_time.seconds(),
            "steps_per_second": self.cursor.step / self.training_time.seconds(),
        }

    def _tell(self, what: str, *arguments) -> None:
        for observer in self.observers:
            getattr(observer, what)(*arguments)
