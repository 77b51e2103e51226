"""What a method is: how one step learns from a batch of the stream, and what happens around tasks.

The contract, in the order of a run:

    begin_task(task, stream)    before the first step of every task
    step(batch, place)          for every batch: draws, forward, loss, backward, adjust_gradients, optimizer, remember;
                                with `--replay_iters N` N times, and only the last, `place.last`, remembers
    end_task(task, stream)      after its last step, before its evaluation
    predict(inputs)             whenever a network is evaluated; it is in eval mode then

A run may be killed anywhere and goes on from a checkpoint, which holds the network, the optimizer, the buffer and the
method's `state_dict`. A resumed run builds the method anew, loads that, and calls again only what the checkpoint does
not cover: steps after it, and a `begin_task` or `end_task` that was not over when it was written. Such a hook starts
from the state that it had found before, so whatever it does twice comes out the same. What a hook or a step leaves
in attributes of the method must therefore be in `state_dict`, and every draw must come from `generator(seed, name,
*place.address)`. `joined` is asked for again by a resumed run and must follow from the state. Which parameters are
frozen is kept too; layers that come with a task are added in `grow`, which a resumed run repeats for every task that
had begun; `train` and `eval` are set by the loop before a task's steps and its evaluation.

A method never asks which norm the network has: there is one copy of it for every norm and every way of batching.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import nn

from utils.config.options import ONE_OF_TASKS_SEEN
from utils.data.augment import Augment
from utils.data.buffer import Buffer, build_policy
from utils.data.random import generator
from utils.data.stream import Stream, StreamSpec
from utils.device import send_together
from utils.errors import TOO_FEW_VALUES
from utils.step import CURRENT, Batch, Output, Place, Step, forwards_of, total

if TYPE_CHECKING:
    from models.compiled_step import CompiledStep

T = TypeVar("T")


def draw_sizes(config, n_draws: int, tasks_seen: int) -> list[int]:
    """Images of each of a step's draws: `minibatch_size`.

    With `--current_share r` the draws have batch_size (1/r - 1) images together, rounded, so that a full batch of the
    stream is the share r of all that a step learns from. Each draw gets as many, the first ones one more if need be.
    """
    if not n_draws:
        return []
    if config.current_share is None:
        return [config.minibatch_size] * n_draws
    share = Fraction(1, tasks_seen) if config.current_share == ONE_OF_TASKS_SEEN else Fraction(config.current_share)
    together = round(config.batch_size * (1 / share - 1))
    return [(together + later) // n_draws for later in reversed(range(n_draws))]


class Method:
    """Base class and template. Most methods override `loss` and say with `draw_names` what they replay."""

    uses_buffer = True
    stores_logits = False
    draw_names: tuple[str, ...] = ()  # the draws from the buffer that a step may have
    needs_features = False
    joint_training = False  # all tasks as one
    always_joint_forward = False  # what `--replay_forward auto` means for this method, whatever the norm
    needs_own_classes = False  # makes no sense where tasks share their classes
    rebuilds_network = False  # what earlier tasks left in the network is thrown away
    # May a step be compiled as a whole (`--compile`)? `loss` is made of tensor operations then, keeps its own tensors
    # where they are, and asks of the place only whether it is in the `first_task`; `step` is the template's.
    compiles = False
    keeps_graph = False  # `adjust_gradients` differentiates the step's outputs once more
    scores_unseen_classes = True  # else forward transfer has no meaning
    unused_options: tuple[str, ...] = ()  # options of the loop and the buffer that mean nothing here

    def __init__(
        self,
        net: nn.Module,
        config,
        spec: StreamSpec,
        augment: Augment,
        buffer: Buffer | None,
        new_network: Callable[[str], nn.Module] | None = None,
    ):
        self.net, self.config, self.spec, self.augment, self.buffer = net, config, spec, augment, buffer
        self.n_classes = spec.n_classes
        self.left_out = 0  # batches of one image that the norm could not normalize
        self.n_grown = 0  # tasks that the network has grown by
        self.new_network = new_network  # a network as this one was before training; its argument addresses the weights
        self.compiled: CompiledStep | None = None  # of `--compile`: `compute` as one graph

    # --- around tasks: override what you need ------------------------------------------------------------------

    def begin_task(self, task: int, stream: Stream) -> None:
        """Before the first step of every task."""

    def joined(self, task: int) -> Batch | None:
        """Samples that join the task's own in every epoch."""

    def end_task(self, task: int, stream: Stream) -> None:
        """After the last step of every task, before its evaluation."""

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        """(samples, classes) scores of normalized test images; the largest wins."""
        return self.net(inputs)

    def state_dict(self) -> dict:
        """What a resumed run needs of the method's own: plain types, tensors, and lists and dictionaries of them."""
        return {}

    def load_state_dict(self, state: dict) -> None: ...

    # --- a step: the template, and its parts --------------------------------------------------------------------

    def step(self, batch: Batch, place: Place) -> Step:
        batches = self.batches(batch, place)
        replayed = self.replayed(batches)
        penalty_weight = self.net.norms.penalty_weight(place.task, replayed) or None
        groups = self.groups(batches, place.task, replayed=replayed)
        self.optimizer.zero_grad()
        by = self.compiled if self.compiled is not None and self.is_full(batches, place) else self
        step = Step(place, batches, *by.compute(batches, groups, place, penalty_weight))
        step.loss.backward(retain_graph=self.keeps_graph)
        if by is self.compiled:
            self.compiled.move()
        self.adjust_gradients(step)
        self.optimizer.step()
        if place.last:
            self.remember(batch, step.outputs, place)
        return step

    def compute(
        self,
        batches: dict[str, Batch],
        groups: dict[str, torch.Tensor | None],
        place: Place,
        penalty_weight: float | torch.Tensor | None,
    ) -> tuple[dict[str, Output], dict[str, torch.Tensor], torch.Tensor]:
        """Outputs, the terms of the loss, and their sum: the part of a step that `--compile` makes one graph of."""
        outputs = self.through_network(batches, groups, penalized=penalty_weight is not None)
        losses = self.loss(batches, outputs, place)
        if not isinstance(losses, dict):
            raise TypeError(
                f"`loss` of {type(self).__name__} must return its terms by name, such as {{'labels': loss}}"
            )
        penalties = [norms.penalty for norms in forwards_of(outputs) if norms.penalty is not None]
        if penalties:
            losses = losses | {"penalty": penalty_weight * total(penalties)}
        return outputs, losses, total(losses.values())

    def is_full(self, batches: dict[str, Batch], place: Place) -> bool:
        """Has the step as many samples as its like always have? Not a run's first, nor those with an epoch's last batch
        or with draws from a buffer that has just begun to fill. By nothing but the state of the run: a resumed run
        compiles the same steps."""
        if self.buffer is not None and not len(self.buffer):
            return False
        names = self.due_draws(place)
        due = dict(zip(names, draw_sizes(self.config, len(names), place.task + 1), strict=True))
        full = {CURRENT: self.config.batch_size} | {name: size for name, size in due.items() if size}
        return {name: len(batch) for name, batch in batches.items()} == full

    def unless_single(self, size: int, learn: Callable[[], T]) -> T | None:
        """`learn()`; or None where an epoch's last batch is a single image that the network's norm cannot normalize:
        it is left out then, and the network is as before."""
        if size > 1 or self.config.batch_size == 1:
            return learn()
        before = {name: buffer.clone() for name, buffer in self.net.named_buffers()}
        try:
            return learn()
        except ValueError as error:
            if TOO_FEW_VALUES not in str(error):
                raise
        for name, buffer in self.net.named_buffers():
            buffer.copy_(before[name])
        if not self.left_out:
            print(
                "note: the last batch of an epoch is a single image, which this norm cannot normalize: left out",
                file=sys.stderr,
            )
        self.left_out += 1
        return None

    def due_draws(self, place: Place) -> tuple[str, ...]:
        """The names of the draws that this step has, as far as `--current_share` leaves each an image."""
        return self.draw_names if len(self.buffer or ()) else ()

    def loss(self, batches: dict[str, Batch], outputs: dict[str, Output], place: Place) -> dict[str, torch.Tensor]:
        """The terms of the loss with their weights, by name; they are added up in this order."""
        raise NotImplementedError(f"{type(self).__name__} has no `loss`: what its batches and outputs cost, by name")

    def adjust_gradients(self, step: Step) -> None:
        """Between the backward and the optimizer's step."""

    def remember(self, batch: Batch, outputs: dict[str, Output], place: Place) -> None:
        """After the optimizer's step: offer the batch to the buffer."""
        if self.buffer is None:
            return
        if self.stores_logits:
            batch = replace(batch, logits=outputs[CURRENT].logits.detach())
        self.buffer.add(batch, generator(self.config.seed, "buffer", place.step))

    def replayed(self, batches: dict[str, Batch]) -> bool:
        """Did the method replay in this step? Then the norms' penalty joins the loss."""
        return len(batches) > 1

    # --- what the parts are made of -----------------------------------------------------------------------------

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of the method's own, beside the network's."""
        return []

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        groups = [{"params": list(self.net.parameters())}]
        if own := self.parameters():
            groups.append({"params": own})
        config = self.config
        common = {"lr": config.lr, "weight_decay": config.optim_wd}
        if config.optimizer == "sgd":
            return torch.optim.SGD(groups, momentum=config.optim_mom, nesterov=config.nesterov, **common)
        return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer](groups, **common)

    def learning_rate(self, task: int, epoch: int) -> float | None:
        """A pure function of the place in the run, so that resuming needs no schedule state; None: no optimizer."""
        config = self.config
        decays = sum(milestone <= epoch for milestone in config.lr_milestones)
        if config.lr_restart == "never":
            decays += task * sum(milestone < config.n_epochs for milestone in config.lr_milestones)
        return config.lr * config.lr_factor**decays

    def grow(self) -> None:
        """The network's own preparations for one more task; parameters that come with it join the optimizer."""
        optimizer = self.optimizer  # made before the network grows
        if grown := self.net.begin_task(self.classes_up_to(self.n_grown)):
            optimizer.add_param_group({"params": grown})
        self.n_grown += 1

    def classes_up_to(self, task: int) -> int:
        """The number of classes of the tasks up to this one."""
        return self.n_classes if self.joint_training else self.spec.classes_of(task).stop

    @classmethod
    def epoch_sizes(cls, config, spec: StreamSpec, train_sizes: Sequence[int]) -> Sequence[int]:
        """Samples in an epoch of every task, with those that join: what a run's steps are counted by beforehand."""
        return train_sizes

    @classmethod
    def buffer_policy(cls, config, spec: StreamSpec):
        return build_policy(config, spec)

    def draws(self, place: Place) -> dict[str, np.ndarray]:
        """The slots of the buffer that this step replays, by the name of the draw."""
        names = self.due_draws(place)
        sizes = draw_sizes(self.config, len(names), place.task + 1)
        return {name: self.draw(name, size, place) for name, size in zip(names, sizes, strict=True) if size}

    def draw(self, name: str, size: int, place: Place) -> np.ndarray:
        draw = generator(self.config.seed, f"replay/{name}", *place.address)
        return self.buffer.choose(size, draw, balanced=self.config.balance_replay)

    def batches(self, batch: Batch, place: Place) -> dict[str, Batch]:
        """The stream's batch and the draws, augmented. All that the host decides goes to the device in one copy."""
        slots = self.draws(place)
        sizes = {CURRENT: len(batch)} | {name: len(chosen) for name, chosen in slots.items()}
        drawn = [
            self.augment.draw(size, name if name == CURRENT else f"replay/{name}", *place.address)
            for name, size in sizes.items()
        ]
        sent = send_together([*drawn, *slots.values()], batch.labels.device)
        drawn_sent, slots_sent = sent[: len(drawn)], sent[len(drawn) :]
        raw = [batch, *(self.buffer.take(*both) for both in zip(slots.values(), slots_sent, strict=True))]
        return {
            name: replace(one, inputs=self.augment.apply(one.images, *numbers))
            for name, one, *numbers in zip(sizes, raw, drawn, drawn_sent, strict=True)
        }

    def forward(self, batches: dict[str, Batch], task: int, *, replayed: bool, penalized: bool) -> dict[str, Output]:
        """The batches of a step through the network, as one or one after the other."""
        return self.through_network(batches, self.groups(batches, task, replayed=replayed), penalized=penalized)

    def groups(self, batches: dict[str, Batch], task: int, *, replayed: bool) -> dict[str, torch.Tensor | None]:
        """The groups of the samples. A step that replays nothing has plain batch statistics: its samples have none."""
        if not replayed and len(batches) == 1:
            return dict.fromkeys(batches)
        return {name: self.net.norms.groups(b, task, drawn=name != CURRENT) for name, b in batches.items()}

    def through_network(
        self, batches: dict[str, Batch], groups: dict[str, torch.Tensor | None], *, penalized: bool
    ) -> dict[str, Output]:
        if len(batches) == 1 or getattr(self.config, "replay_forward", None) != "joint":
            return {
                name: self.net.output(batch.inputs, groups[name], penalized=penalized)
                for name, batch in batches.items()
            }
        inputs = torch.cat([batch.inputs for batch in batches.values()])
        together = None if groups[CURRENT] is None else torch.cat(list(groups.values()))
        whole = self.net.output(inputs, together, penalized=penalized)
        return dict(zip(batches, whole.split([len(batch.inputs) for batch in batches.values()]), strict=True))
