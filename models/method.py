"""The contract of a continual-learning method, in the order of a run:

    begin_task(task, stream)    before the first step of every task
    step(batch, index)          for every batch of the stream: replay, loss, gradients, optimizer, buffer;
                                `--replay_iters N` makes N steps of a batch, of which the last fills the buffer
    end_task(task, stream)      after the last step of a task, before its evaluation
    predict(inputs)             in every evaluation, with the network in eval mode

A run can be killed at any time and is resumed from a checkpoint, which holds the network, the frozen parameters, the
optimizer, the buffer and the method's `state_dict`. Three rules follow:

- What a hook leaves in attributes belongs into `state_dict`.
- Random draws come from `generator(seed, name, *index.address)`, or from the global generators of torch, numpy and
  Python, which are seeded before every step, hook and evaluation.
- A resumed run repeats the steps after its checkpoint, and a `begin_task` or `end_task` that was not over. Such a hook
  starts from the state before it.

A method does not know which norm the network has, nor whether batches pass the network jointly or one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from models.replay import BatchAssembler
from models.step_runner import StepRunner
from utils.data.augment import Augment
from utils.data.buffer import Buffer, Policy, build_policy
from utils.data.random import generator
from utils.data.stream import Stream, StreamSpec
from utils.step import CURRENT, Batch, Output, Step, StepIndex

if TYPE_CHECKING:
    from backbone.network import Network
    from models.compiled_step import CompiledStep
    from utils.config.resolve import Config


# Options without effect for methods that draw nothing from the buffer in a step and fill it in their own way.
DRAW_OPTIONS = ("minibatch_size", "current_share", "balance_replay", "replay_iters", "replay_forward")
BUFFER_OPTIONS = (*DRAW_OPTIONS, "buffer_mode")


class Method:
    """Base class of all methods. Most methods set `draw_names` and override `loss`.

    Example:
        >>> @MODELS.register("my_er", help="experience replay")
        ... class MyER(Method):
        ...     draw_names = ("replay",)
        ...
        ...     def loss(self, batches, outputs, index):
        ...         return {name: F.cross_entropy(outputs[name].logits, batches[name].labels) for name in batches}
    """

    uses_buffer = True  #: the run has a memory buffer
    #: The buffer holds the logits of its samples; with `--classifier seen`, those of classes unseen then are masked.
    stores_logits = False
    draw_names: tuple[str, ...] = ()  #: names of the draws from the buffer in a step
    needs_features = False  #: the network must have feature maps
    needs_own_classes = False  #: tasks must not share their classes
    #: The boundaries of tasks must be known. None: if the class has an own `begin_task`, `end_task` or
    #: `extra_task_samples`.
    needs_boundaries: bool | None = None
    joint_training = False  #: all tasks are trained as one
    rebuilds_network = False  #: every task starts with a new network
    always_joint_forward = False  #: meaning of `--replay_forward auto`, whatever the norm
    keeps_graph = False  #: `adjust_gradients` differentiates the outputs again
    scores_unseen_classes = True  #: otherwise there is no forward transfer
    #: A step can be compiled (`--compile`). This needs a `loss` that consists of tensor operations, writes to its own
    #: tensors in place and reads of the index only `first_task`, and a `step` that is not overridden.
    compiles = False
    unused_options: tuple[str, ...] = ()  #: options of the loop and the buffer without effect

    def __init__(
        self,
        net: Network,
        config: Config,
        spec: StreamSpec,
        augment: Augment,
        buffer: Buffer | None,
        new_network: Callable[[str], Network] | None = None,
    ):
        """Store the parts of the run.

        Args:
            net: The network, before training.
            config: The options of the run as attributes, the method's own included.
            spec: Number of tasks and classes, and the classes of every task.
            augment: `augment.normalize(images)` are inputs for testing; batches of a step are augmented already.
            buffer: None if `uses_buffer` is False.
            new_network: Returns an untrained network. Its argument names the random draw of the weights; "init" gives
                the weights that `net` started with.
        """
        self.net, self.config, self.spec, self.augment, self.buffer = net, config, spec, augment, buffer
        self.n_classes = spec.n_classes
        self.new_network = new_network
        self.tasks_begun = 0
        if getattr(config, "classifier", "all") == "seen":
            self.scores_unseen_classes = False
        self.assembler = BatchAssembler(config, augment, buffer)
        self.runner = StepRunner(self)
        self.compiled: CompiledStep | None = None  # set by `--compile`

    # --- what a method overrides ---------------------------------------------------------------------------------

    def begin_task(self, task: int, stream: Stream) -> None:
        """Prepare for a task, before its first step."""

    def extra_task_samples(self, task: int) -> Batch | None:
        """Return samples to add to the task's own data in every epoch, or None.

        A resumed run calls it again, so the result must depend only on the method's state.
        """
        return None

    def replay_draws_for_step(self, index: StepIndex) -> tuple[str, ...]:
        """Return the names of the draws from the buffer that this step has."""
        return self.draw_names if len(self.buffer or ()) else ()

    def loss(self, batches: dict[str, Batch], outputs: dict[str, Output], index: StepIndex) -> dict[str, torch.Tensor]:
        """Return the weighted terms of the loss by name; they are added in this order.

        Args:
            batches: The stream's batch (`CURRENT`) and the draws, by name.
            outputs: Logits, embeddings and feature maps of the batches, by the same names.
            index: Task, epoch and number of the step.

        Returns:
            Scalars, with their weights applied. The norm's penalty is added by the base class.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `loss`")

    def is_replay_step(self, batches: dict[str, Batch]) -> bool:
        """Return whether the step replays samples; only then does the norm's penalty join the loss."""
        return len(batches) > 1

    def adjust_gradients(self, step: Step) -> None:
        """Change the parameters' gradients between the backward pass and the optimizer's step."""

    def remember(self, batch: Batch, outputs: dict[str, Output], index: StepIndex) -> None:
        """Offer the stream's batch to the buffer, after the optimizer's step."""
        if self.buffer is None:
            return
        if self.stores_logits or CURRENT in outputs:  # a policy may use logits that are not stored
            batch = replace(batch, logits=outputs[CURRENT].logits.detach())
        self.buffer.add(batch, generator(self.config.seed, "buffer", index.step))

    def end_task(self, task: int, stream: Stream) -> None:
        """Finish a task, after its last step and before its evaluation."""

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return scores (samples, classes) of normalized test images; the largest wins."""
        return self.net(inputs)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: plain types, tensors, and lists and dictionaries of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""

    def parameters(self) -> list[nn.Parameter]:
        """Return trained parameters of the method itself, besides the network's."""
        return []

    # --- the template of a step ----------------------------------------------------------------------------------

    def step(self, batch: Batch, index: StepIndex) -> Step:
        """Train on one batch of the stream. A method may override it as a whole."""
        step = self.runner.run(self.batches(batch, index), index)
        self.adjust_gradients(step)
        self.optimizer.step()
        if index.last:
            self.remember(batch, step.outputs, index)
        return step

    def batches(self, batch: Batch, index: StepIndex) -> dict[str, Batch]:
        """Return the stream's batch and the draws from the buffer, augmented."""
        return self.assembler.assemble(batch, self.replay_draws_for_step(index), index)

    # --- defaults that few methods change ------------------------------------------------------------------------

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        config = self.config
        groups = [{"params": part} for part in (list(self.net.parameters()), self.parameters()) if part]
        common: dict[str, Any] = {"lr": config.lr, "weight_decay": config.optim_wd}
        if config.optimizer == "sgd":
            return torch.optim.SGD(groups, momentum=config.optim_mom, nesterov=config.nesterov, **common)
        return (torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW)(groups, **common)

    def learning_rate(self, task: int, epoch: int) -> float | None:
        """Return the learning rate of an epoch, from its position alone; None if the stream is not learned from."""
        config = self.config
        decays = sum(milestone <= epoch for milestone in config.lr_milestones)
        if config.lr_restart == "never":
            decays += task * sum(milestone < config.n_epochs for milestone in config.lr_milestones)
        return config.lr * config.lr_factor**decays

    @classmethod
    def epoch_sizes(cls, config: Config, spec: StreamSpec, train_sizes: Sequence[int]) -> Sequence[int]:
        """Return the samples in an epoch of every task, extra ones included, to count the steps of a run."""
        return train_sizes

    @classmethod
    def buffer_policy(cls, config: Config, spec: StreamSpec) -> Policy:
        """Return the policy of the buffer."""
        return build_policy(config, spec)

    @classmethod
    def requires_boundaries(cls) -> bool:
        """Return whether the method cannot learn from a stream without known task boundaries."""
        if cls.needs_boundaries is not None:
            return cls.needs_boundaries
        hooks = ("begin_task", "end_task", "extra_task_samples")
        return any(getattr(cls, name) is not getattr(Method, name) for name in hooks)

    # --- growth with the tasks -----------------------------------------------------------------------------------

    def grow(self) -> None:
        """Prepare the network for one more task; a resumed run repeats it for every task that had begun."""
        optimizer = self.optimizer  # must exist before the network grows
        if new_parameters := self.net.begin_task(self.classes_up_to(self.tasks_begun)):
            optimizer.add_param_group({"params": new_parameters})
        self.tasks_begun += 1

    def classes_up_to(self, task: int) -> int:
        """Return the number of classes of the tasks up to this one."""
        return self.n_classes if self.joint_training else self.spec.classes_of(task).stop
