"""The training loop: tasks, epochs, batches. It knows neither the method nor the norm nor who is watching."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from models.method import CURRENT, Method, Output, Part, Place
from utils.data.random import generator
from utils.data.stream import Split, Stream
from utils.device import to_device
from utils.errors import TOO_FEW_VALUES, RunFailed
from utils.run import metrics
from utils.run.checkpoints import Checkpoints
from utils.run.evaluation import accuracies
from utils.run.observers import Observer
from utils.run.signals import Signals

DEBUG_BATCHES = 3


@dataclass
class Cursor:
    """The next thing to do: this batch of this epoch of this task. `step` counts all batches so far."""

    task: int = 0
    epoch: int = 0
    batch: int = 0
    step: int = 0


def learning_rate(config, task: int, epoch: int) -> float:
    """A pure function of the place in the run, so that resuming needs no schedule state."""
    decays = sum(milestone <= epoch for milestone in config.lr_milestones)
    if config.lr_restart == "never":
        decays += task * sum(milestone < config.n_epochs for milestone in config.lr_milestones)
    return config.lr * config.lr_factor**decays


def batches_per_epoch(config, size: int) -> int:
    batches = -(-size // config.batch_size)
    return min(batches, DEBUG_BATCHES) if config.debug_mode else batches


def total_steps(config, train_sizes: Sequence[int]) -> int:
    return config.n_epochs * sum(batches_per_epoch(config, size) for size in train_sizes)


def forward_parts(net: nn.Module, parts: dict[str, Part], *, joint: bool) -> dict[str, Output]:
    """The parts of a step through the network, as one batch or one after the other.

    A step that replays nothing has plain batch statistics: its samples' tasks are not passed on.
    """
    if len(parts) == 1:
        return {CURRENT: Output(*net.forward_features(parts[CURRENT].inputs))}
    if not joint:
        return {name: Output(*net.forward_features(part.inputs, part.tasks)) for name, part in parts.items()}
    together = torch.cat([part.inputs for part in parts.values()])
    logits, features = net.forward_features(together, np.concatenate([part.tasks for part in parts.values()]))
    sizes = [len(part.tasks) for part in parts.values()]
    pieces = zip(logits.split(sizes), *(feature.split(sizes) for feature in features), strict=True)
    return {name: Output(own[0], list(own[1:])) for name, own in zip(parts, pieces, strict=True)}


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
        net: nn.Module,
        method: Method,
        observers: Sequence[Observer] = (),
        checkpoints: Checkpoints | None = None,
        signals: Signals | None = None,
    ):
        self.config, self.stream, self.net, self.method = config, stream, net, method
        self.observers, self.checkpoints = observers, checkpoints
        self.signals = signals or Signals()
        self.cursor = Cursor()
        self.tasks_begun = 0
        self.thread_counts = [torch.get_num_threads()]
        self.untrained: dict[str, list[float]] = {}
        self.rows: dict[str, list[list[float]]] = {}
        self.training_time, self.wall_time = Stopwatch(), Stopwatch()
        device = next(net.parameters()).device
        # Losses since the last log line stay on the device; reading them is the only wait of the loop.
        self.losses = torch.zeros(config.log_every, dtype=torch.float64, device=device)
        self.unread = 0
        self.optimizer: torch.optim.Optimizer | None = None

    # --- the run ----------------------------------------------------------------------------------------------

    def run(self, state: dict | None = None) -> dict:
        """Train through the stream, from a checkpoint's state if there is one; returns results as plain data."""
        self.wall_time.start()
        if state is None:
            self.untrained = self._evaluate(range(self.stream.spec.n_tasks))
            self.method.prepare(self.stream)
            self.build_optimizer()
        else:
            self.load_state_dict(state)
        self._tell("on_start", self.n_steps(), self.cursor.step)
        while self.cursor.task < self.stream.n_train_tasks:
            self._train_task()
            self._evaluate_task()
            self.cursor = Cursor(task=self.cursor.task + 1, step=self.cursor.step)
        return self._outcome()

    def n_steps(self) -> int:
        bounds = self.stream.train_bounds
        return total_steps(self.config, [stop - start for start, stop in pairwise(bounds)])

    def build_optimizer(self) -> None:
        groups = [{"params": list(self.net.parameters())}]
        if own := self.method.parameters():
            groups.append({"params": own})
        self.optimizer = torch.optim.SGD(
            groups, lr=self.config.lr, momentum=self.config.optim_mom, weight_decay=self.config.optim_wd
        )

    def begin_task(self, task: int) -> None:
        self._grow()
        self.method.begin_task(task)

    def _grow(self) -> None:
        """The network's own preparations for one more task; parameters that come with it join the optimizer."""
        if grown := self.net.begin_task():
            self.optimizer.add_param_group({"params": grown})
        self.tasks_begun += 1

    def _train_task(self) -> None:
        cursor = self.cursor
        data = self.stream.train(cursor.task)
        if (cursor.epoch, cursor.batch) == (0, 0):
            self.begin_task(cursor.task)
        self.training_time.start()
        self.net.train()
        with self.signals.held():
            while cursor.epoch < self.config.n_epochs:
                self.train_epoch(data)
                cursor.epoch, cursor.batch = cursor.epoch + 1, 0
        self.training_time.stop()
        self._checkpoint_after_task()

    def _checkpoint_after_task(self) -> None:
        """Before the evaluation, which a resumed run then repeats. The last task's is followed by the record."""
        if self.checkpoints and self.cursor.step > self.checkpoints.last_step:
            self._save()
        self.signals.check()

    def train_epoch(self, data: Split) -> None:
        config, cursor = self.config, self.cursor
        lr = learning_rate(config, cursor.task, cursor.epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        order = generator(config.seed, "shuffle", cursor.task, cursor.epoch).permutation(len(data))
        order_on_device = to_device(order, data.labels)
        n_batches = batches_per_epoch(config, len(data))
        while cursor.batch < n_batches:
            chosen = slice(cursor.batch * config.batch_size, (cursor.batch + 1) * config.batch_size)
            index = order_on_device[chosen]
            images, labels = data.images.index_select(0, index), data.labels.index_select(0, index)
            self._explained_step(Split(images, labels, data.labels_host[order[chosen]]))
            cursor.batch += 1
            cursor.step += 1
            self._tell("on_step", cursor.task, cursor.step)
            if self.unread == config.log_every or cursor.batch == n_batches:
                self._log(lr)
            stop = self.signals.received is not None  # read once: a signal that comes later waits for the next step
            if self.checkpoints and (stop or self.checkpoints.due(cursor.step)):
                self._save()
            if stop:
                self.signals.check()

    def _explained_step(self, batch: Split) -> None:
        try:
            self.train_step(batch)
        except ValueError as error:
            if TOO_FEW_VALUES not in str(error):
                raise
            raise RunFailed(f"{error}: choose a --batch_size that leaves no batch of one image") from error

    def train_step(self, batch: Split) -> None:
        place = Place(self.cursor.task, self.cursor.step)
        parts = self.method.parts(batch, place)
        penalty_weight = self.net.begin_step(place.task, self.method.replayed(parts))
        outputs = forward_parts(self.net, parts, joint=getattr(self.config, "replay_forward", None) == "joint")
        loss = self.method.loss(parts, outputs, place)
        if penalty_weight:
            loss = loss + penalty_weight * self.net.penalty()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.method.remember(batch, outputs, place)
        self.losses[self.unread] = loss.detach()
        self.unread += 1

    # --- stopping and going on ---------------------------------------------------------------------------------

    def _save(self) -> None:
        self._check_losses()
        with self.signals.held():
            self.checkpoints.save(self.cursor.step, self.state_dict())

    def state_dict(self) -> dict:
        """Everything that the rest of the run depends on; randomness is addressed by the cursor and needs no state."""
        return {
            "cursor": asdict(self.cursor),
            "tasks_begun": self.tasks_begun,
            "thread_counts": self.thread_counts,
            "net": dict(self.net.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "method": self.method.state_dict(),
            "buffer": None if self.method.buffer is None else self.method.buffer.state_dict(),
            "untrained": self.untrained,
            "rows": self.rows,
            "losses": self.losses[: self.unread].tolist(),
            "observers": {type(observer).__name__: observer.state_dict() for observer in self.observers},
            "training_seconds": self.training_time.seconds(),
            "wall_seconds": self.wall_time.seconds(),
        }

    def load_state_dict(self, state: dict) -> None:
        self.method.load_state_dict(state["method"])
        self.build_optimizer()
        for _ in range(state["tasks_begun"]):
            self._grow()
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.method.buffer is not None:
            self.method.buffer.load_state_dict(state["buffer"])
        self.cursor = Cursor(**state["cursor"])
        self.untrained, self.rows = state["untrained"], state["rows"]
        self.unread = len(state["losses"])
        self.losses[: self.unread] = torch.tensor(state["losses"], dtype=self.losses.dtype)
        for observer in self.observers:
            observer.load_state_dict(state["observers"].get(type(observer).__name__, {}))
        self.training_time.before, self.wall_time.before = state["training_seconds"], state["wall_seconds"]

    # --- what is measured --------------------------------------------------------------------------------------

    def _check_losses(self) -> np.ndarray:
        """The losses since the last log line; a run that has diverged ends here and is never saved."""
        losses = self.losses[: self.unread].cpu().numpy()
        if np.isfinite(losses).all():
            return losses
        bad = int(np.flatnonzero(~np.isfinite(losses))[0])
        step = self.cursor.step - self.unread + bad + 1
        raise RunFailed(
            f"the loss became {losses[bad]} at step {step}, task {self.cursor.task + 1}: "
            "the run diverged; a smaller --lr may help"
        )

    def _log(self, lr: float) -> None:
        losses = self._check_losses()
        self.unread = 0
        event = {"step": self.cursor.step, "task": self.cursor.task, "epoch": self.cursor.epoch}
        self._tell("on_log", event | {"loss": float(losses.mean()), "lr": lr})

    def _evaluate(self, tasks) -> dict[str, list[float]]:
        return accuracies(self.net, self.stream, tasks, self.method.augment)

    def _evaluate_task(self) -> None:
        """After task i the tasks up to i + 1 are tested: the next one too, for forward transfer."""
        joint, last = self.stream.n_train_tasks == 1, self.stream.spec.n_tasks
        task = self.cursor.task
        results = self._evaluate(range(last if joint else min(task + 2, last)))
        trained = last if joint else task + 1
        for setting, row in results.items():
            self.rows.setdefault(setting, []).append(row)
        means = {setting: metrics.mean(row[:trained]) for setting, row in results.items()}
        self._tell("on_evaluation", {"step": self.cursor.step, "task": task, "accuracy": results, "mean": means})

    def _outcome(self) -> dict:
        results = {}
        for setting, rows in self.rows.items():
            n_tasks = self.stream.spec.n_tasks
            matrix = [row + [None] * (n_tasks - len(row)) for row in rows]
            results[setting] = {
                "matrix": matrix,
                "untrained": self.untrained[setting],
                "metrics": metrics.summary(matrix, self.untrained[setting]),
            }
        return {
            "results": results,
            "steps": self.cursor.step,
            "seconds": self.training_time.seconds(),
            "wall_seconds": self.wall_time.seconds(),
            "steps_per_second": self.cursor.step / self.training_time.seconds(),
        }

    def _tell(self, what: str, *arguments) -> None:
        for observer in self.observers:
            getattr(observer, what)(*arguments)
