"""The training loop: tasks, epochs, batches. It knows neither the method nor the norm nor who is watching."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from models.method import Method
from utils.data.random import seed_global_generators
from utils.data.stream import Stream
from utils.errors import TOO_FEW_VALUES, RunFailed
from utils.run import metrics
from utils.run.embedding_eval import embedding_accuracies
from utils.run.evaluation import count_correct_before_training, evaluate
from utils.run.outcomes import final_statistics, is_late, late_summary
from utils.run.signals import Signals
from utils.step import CURRENT, Batch, Step, StepIndex

if TYPE_CHECKING:
    from utils.config.resolve import Config
    from utils.run.checkpoints import Checkpoints
    from utils.run.observers import Observer

DEBUG_BATCHES = 3
PLAIN_STATE = ("untrained", "rows", "points", "late", "loss_steps", "unlogged", "n_samples")  # saved as they are


@dataclass
class Cursor:
    """The position in the run: the batch to train on next."""

    task: int = 0
    epoch: int = 0
    batch: int = 0
    step: int = 0  # the batches so far, whatever the number of their iterations
    ended: bool = False  # whether the method's `end_task` is over


def batches_per_epoch(config: Config, size: int) -> int:
    batches = size // config.batch_size if config.drop_last else -(-size // config.batch_size)
    return min(batches, DEBUG_BATCHES) if config.debug_mode else batches


def steps_per_task(config: Config, size: int) -> int:
    """Return the steps of a task with `size` samples in an epoch."""
    if config.n_iters is None:
        return config.n_epochs * batches_per_epoch(config, size)
    return min(config.n_iters, DEBUG_BATCHES) if config.debug_mode else config.n_iters


def total_steps(config: Config, train_sizes: Sequence[int]) -> int:
    return sum(steps_per_task(config, size) for size in train_sizes)


class Training:
    """A run from its first step, or from a checkpoint, to its results."""

    checkpoints: Checkpoints | None = None

    def __init__(self, config: Config, stream: Stream, method: Method, observers: Sequence[Observer] = ()):
        self.config, self.stream, self.method = config, stream, method
        _ = method.optimizer  # its imports take a while: do them before the first step
        self.observers, self.signals = observers, Signals()
        self.cursor = Cursor()
        self.conditions: list[dict[str, Any]] = []  # of the processes of this run
        self.untrained: dict[str, list[float]] = {}
        self.rows: dict[str, list[list[float]]] = {}
        self.points: list[dict[str, Any]] = []  # evaluations while a task is trained
        self.late: dict[str, list[float]] = {}  # by setting, FAA at the late evaluations
        self.confusion: torch.Tensor | None = None  # at the end of the last task
        self.started, self.evaluation_seconds = time.monotonic(), 0.0  # a resumed run counts its earlier processes
        self.iterations = getattr(config, "replay_iters", 1)  # steps per batch of the stream
        # Losses and terms since the last log line stay on the device: reading them is the loop's only device sync.
        self.losses: list[torch.Tensor] = []
        self.loss_steps: list[int] = []  # the steps that the losses belong to
        self.term_sums: dict[str, torch.Tensor] = {}
        self.unlogged = 0  # batches since the last log line
        # Of a stream without boundaries: samples so far, and how many were predicted before training on them.
        self.n_samples = 0
        self.n_predicted = torch.zeros((), dtype=torch.int64, device=method.augment.scale.device)

    def run(self, state: dict[str, Any] | None = None) -> dict[str, Any]:
        """Train through the stream, from a checkpoint's state if given, and return the results as plain data."""
        if state is None:
            self.untrained, _ = self._evaluate(self.stream.spec.n_tasks)
        else:
            self.load_state_dict(state)
        sizes = self.method.epoch_sizes(self.method.config, self.stream.spec, self.stream.train_sizes)
        self._notify("on_start", total_steps(self.config, sizes), self.cursor.step)
        try:
            while self.cursor.task < len(self.stream.train_sizes):
                self._train_task()
                self._end_task()
                self._evaluate_task()
                self.cursor = Cursor(task=self.cursor.task + 1, step=self.cursor.step)
        except ValueError as error:
            if TOO_FEW_VALUES not in str(error):
                raise
            raise RunFailed(f"{error}; choose a --batch_size that leaves no batch and no draw of one image") from error
        return self._outcome()

    def _evaluate(self, n_tasks: int) -> tuple[dict[str, list[float]], torch.Tensor]:
        """Return what `evaluate` does of the first tasks; its time is not counted as training."""
        started = time.monotonic()
        results = evaluate(self.method, self.stream, range(n_tasks))
        self.evaluation_seconds += time.monotonic() - started
        return results

    def _training_seconds(self) -> float:
        return time.monotonic() - self.started - self.evaluation_seconds

    def begin_task(self) -> None:
        seed_global_generators(self.config.seed, "begin_task", self.cursor.task)
        self.method.grow()
        self.method.begin_task(self.cursor.task, self.stream)

    def _train_task(self) -> None:
        cursor = self.cursor
        if (cursor.epoch, cursor.batch) == (0, 0):
            self.begin_task()
        self.method.net.train()
        with self.signals.held():
            while not cursor.ended and self._train_epoch():
                cursor.epoch, cursor.batch = cursor.epoch + 1, 0

    def _end_task(self) -> None:
        """Call the method's `end_task`, which may take long: a checkpoint precedes it, and another one follows."""
        if self.checkpoints and self.cursor.step > self.checkpoints.last_step:
            self._save()
        self.signals.check()
        if self.cursor.ended:
            return
        seed_global_generators(self.config.seed, "end_task", self.cursor.task)
        self.method.end_task(self.cursor.task, self.stream)
        self.cursor.ended = True
        if self.checkpoints and type(self.method).end_task is not Method.end_task:
            self._save()
            self.signals.check()

    def _train_epoch(self) -> bool:
        """Train on the rest of an epoch; return False if the task has no steps left."""
        config, cursor, method, checkpoints = self.config, self.cursor, self.method, self.checkpoints
        seed_global_generators(config.seed, "epoch", cursor.task, cursor.epoch)
        extra = method.extra_task_samples(cursor.task)
        size = self.stream.train_sizes[cursor.task] + (len(extra) if extra else 0)
        per_epoch = batches_per_epoch(config, size)
        steps_left = steps_per_task(config, size) - cursor.epoch * per_epoch  # from the beginning of this epoch
        if steps_left <= 0:
            return False
        lr = method.learning_rate(cursor.task, cursor.epoch)
        for group in method.optimizer.param_groups if lr is not None else ():
            group["lr"] = lr
        n_batches = min(per_epoch, steps_left)
        batches = self.stream.batches(cursor.task, cursor.epoch, cursor.batch, extra)
        for batch in islice(batches, n_batches - cursor.batch):
            self._train_on_batch(batch)
            cursor.batch += 1
            cursor.step += 1
            self.unlogged += 1
            if self.unlogged >= config.log_every or cursor.batch == n_batches:
                self._log(lr)
            remaining = steps_left - cursor.batch  # after the last step, all tasks are evaluated anyway
            if config.eval_every and cursor.step % config.eval_every == 0 and remaining:
                self._evaluate_mid_task(is_late=False)
            if cursor.task == len(self.stream.train_sizes) - 1 and is_late(remaining, config.late_evaluations):
                self._evaluate_mid_task(is_late=True)
            stop = self.signals.received is not None  # read once: a later signal waits for the next step
            if checkpoints and (stop or checkpoints.due(cursor.step)):
                self._save()
            if stop:
                self.signals.check()
        return True

    def _train_on_batch(self, batch: Batch) -> None:
        """Make the steps of a batch. If the batch is skipped, only notify observers."""
        cursor, method = self.cursor, self.method
        if not self.stream.spec.has_boundaries:
            self.n_predicted = self.n_predicted + count_correct_before_training(method, batch, cursor.step)
            self.n_samples += len(batch)
        for iteration in range(self.iterations):
            index = StepIndex(cursor.task, cursor.step, cursor.epoch, iteration, iteration == self.iterations - 1)
            seed_global_generators(self.config.seed, "step", *index.address)
            step = method.runner.skip_unnormalizable_batch(len(batch), partial(method.step, batch, index))
            skipped = step is None
            step = step or Step(replace(index, last=True), {CURRENT: batch})
            if step.loss is not None:
                self.losses.append(step.loss.detach().to(torch.float64, copy=True))
                self.loss_steps.append(step.index.step)
            for name, term in step.loss_terms.items():
                value = term.detach().reshape(()).double()
                self.term_sums[name] = self.term_sums[name] + value if name in self.term_sums else value
            self._notify("on_step", step)
            del step  # frees its activations before the next step
            if skipped:
                return

    def _notify(self, event: str, *arguments: Any) -> None:
        for observer in self.observers:
            getattr(observer, event)(*arguments)

    def _save(self) -> None:
        assert self.checkpoints is not None
        with self.signals.held():
            self.checkpoints.save(self.cursor.step, self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on. Randomness is addressed by the cursor: no state."""
        method = self.method
        return {
            "cursor": asdict(self.cursor),
            "tasks_begun": method.tasks_begun,
            "conditions": self.conditions,
            "net": dict(method.net.state_dict()),
            "frozen": [name for name, parameter in method.net.named_parameters() if not parameter.requires_grad],
            "optimizer": method.optimizer.state_dict(),
            "method": method.state_dict(),
            "buffer": None if method.buffer is None else method.buffer.state_dict(),
            "late_evaluations": self.config.late_evaluations,
            "losses": self._check_losses().tolist(),
            "loss_terms": self.term_sums,
            "n_predicted": self.n_predicted,
            "skipped_batches": method.runner.skipped_batches,
            "observers": {observer.key: observer.state_dict() for observer in self.observers},
            "probes": self.config.probe_options,
            "training_seconds": self._training_seconds(),
            "wall_seconds": time.monotonic() - self.started,
            **{name: getattr(self, name) for name in PLAIN_STATE},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        method = self.method
        for task in range(state["tasks_begun"]):
            seed_global_generators(self.config.seed, "begin_task", task)
            method.grow()
        method.net.load_state_dict(state["net"])
        for name, parameter in method.net.named_parameters():
            parameter.requires_grad_(name not in state["frozen"])
        method.optimizer.load_state_dict(state["optimizer"])
        if method.buffer is not None:
            method.buffer.load_state_dict(state["buffer"])
        method.load_state_dict(state["method"])
        method.runner.skipped_batches = state["skipped_batches"]
        self.cursor = Cursor(**state["cursor"])
        for name in PLAIN_STATE:
            setattr(self, name, state.get(name, getattr(self, name)))  # older checkpoints lack n_samples
        device = next(method.net.parameters()).device
        self.n_predicted = state.get("n_predicted", self.n_predicted).to(device)
        self.losses = [*torch.tensor(state["losses"], dtype=torch.float64, device=device)]
        self.term_sums = {name: value.to(device) for name, value in state["loss_terms"].items()}
        for observer in self.observers:
            observer.load_state_dict(state["observers"].get(observer.key, {}))
        self.started = time.monotonic() - state["wall_seconds"]
        self.evaluation_seconds = state["wall_seconds"] - state["training_seconds"]

    def _check_losses(self) -> np.ndarray:
        """Return the losses since the last log line. A run that has diverged ends here and is never saved."""
        losses = torch.stack(self.losses).cpu().numpy() if self.losses else np.empty(0)
        if not np.isfinite(losses).all():
            bad = int(np.flatnonzero(~np.isfinite(losses))[0])
            self._fail_diverged(f"the loss became {losses[bad]} at step {self.loss_steps[bad] + 1}")
        return losses

    def _fail_diverged(self, symptom: str) -> NoReturn:
        advice = " or a smaller weight of the norm's penalty" if "penalty" in self.term_sums else ""
        raise RunFailed(f"the run diverged in task {self.cursor.task + 1}: {symptom}; a smaller --lr{advice} may help")

    def _log(self, lr: float | None) -> None:
        """Report the mean loss since the last line, and the mean of its terms, which add up to it."""
        losses = self._check_losses()
        means = (torch.stack([*self.term_sums.values()]) / len(losses)).tolist() if self.term_sums else []
        event = {name: getattr(self.cursor, name) for name in ("step", "task", "epoch")}
        event["loss"] = float(losses.mean()) if len(losses) else None
        event |= {"terms": dict(zip(self.term_sums, means, strict=True)), "lr": lr} | self._prequential()
        self.losses, self.loss_steps, self.term_sums, self.unlogged = [], [], {}, 0
        scalars = {f"{observer.key}/{name}": float(value)
                   for observer in self.observers for name, value in observer.scalars().items()}  # fmt: skip
        event |= {"scalars": scalars} if scalars else {}
        self._notify("on_log", event)

    def _prequential(self) -> dict[str, float]:
        """Return the accuracy (%) on the samples so far, each tested before training on it; without boundaries only."""
        return {"prequential": 100 * self.n_predicted.item() / self.n_samples} if self.n_samples else {}

    def _n_trained(self) -> int:
        """Return the number of tasks trained so far, the present one included; joint training has all at once."""
        return self.stream.spec.n_tasks if len(self.stream.train_sizes) == 1 else self.cursor.task + 1

    def _evaluate_task(self) -> None:
        """Evaluate at the end of a task, on the next task too, for forward transfer."""
        tensors = [tensor for tensor in self.method.net.state_dict().values() if tensor.is_floating_point()]
        if not torch.stack([tensor.isfinite().all() for tensor in tensors]).all():  # though the last loss was finite
            self._fail_diverged(f"weights or statistics are not finite after step {self.cursor.step}")
        n_trained = self._n_trained()
        n_tested = min(n_trained + self.method.scores_unseen_classes, self.stream.spec.n_tasks)
        results, self.confusion = self._evaluate(n_tested)
        for setting, row in results.items():
            self.rows.setdefault(setting, []).append(row)
        means = {setting: metrics.mean(row[:n_trained]) for setting, row in results.items()}
        event = {"step": self.cursor.step, "task": self.cursor.task, "accuracy": results, "mean": means}
        self._notify("on_evaluation", event)

    def _evaluate_mid_task(self, *, is_late: bool) -> None:
        """Evaluate while a task is trained, for `--late_evaluations` or `--eval_every`.

        The test images are those of the tasks so far; of the classes so far, where boundaries are not known.
        """
        results, confusion = self._evaluate(self._n_trained())
        if not self.stream.spec.has_boundaries:
            classes = self.stream.classes_seen(self.cursor.step)
            counts = confusion.cpu().numpy()[classes]  # by class and prediction
            results = {"class_il": [float(100 * counts[np.arange(len(classes)), classes].sum() / counts.sum())]}
        self.method.net.train()
        means = {setting: metrics.mean(row) for setting, row in results.items()}
        if is_late:
            for setting, mean in means.items():
                self.late.setdefault(setting, []).append(mean)
            return
        event = {"step": self.cursor.step, "task": self.cursor.task, "accuracy": results}
        self.points.append(event)
        self._notify("on_mid_task_eval", event | {"mean": means})

    def _outcome(self) -> dict[str, Any]:
        assert self.confusion is not None
        seconds = self._training_seconds()  # before the evaluations that follow
        config, method, confusion = self.config, self.method, self.confusion.tolist()
        last_rows = {setting: rows[-1] for setting, rows in self.rows.items()}
        seed_global_generators(config.seed, "embedding_eval")
        embedding = embedding_accuracies(method, self.stream) if config.embedding_eval else {}
        seed_global_generators(config.seed, "final_statistics")
        statistics = final_statistics(method, self.stream, last_rows) if config.final_statistics else {}
        results: dict[str, dict[str, Any]] = {}
        for setting, rows in self.rows.items():
            evals = [each | {"accuracy": each["accuracy"][setting]} for each in self.points]
            untrained, own_confusion = self.untrained[setting], None if setting == "task_il" else confusion
            scored = untrained if method.scores_unseen_classes else None
            summary = metrics.summary(metrics.measured(rows, scored, evals, own_confusion))
            results[setting] = result = {
                "matrix": [[*row, *[None] * (self.stream.spec.n_tasks - len(row))] for row in rows],
                "untrained": untrained,
                "metrics": summary | embedding.get(setting, {}) | self._prequential(),
            }
            if setting != "task_il":  # where all classes compete
                result |= {"per_class": metrics.per_class(confusion), "confusion": confusion}
            if config.eval_every:
                result["points"] = evals
            if config.final_statistics:
                result["final_statistics"] = statistics[setting]
            if config.late_evaluations:
                result["late_evaluations"] = late_summary([*self.late.get(setting, []), metrics.mean(rows[-1])])
        return {
            "results": results,
            "steps": self.cursor.step,
            "batches_left_out": method.runner.skipped_batches,
            "seconds": seconds,
            "wall_seconds": time.monotonic() - self.started,
            "steps_per_second": self.cursor.step / seconds,
        }
