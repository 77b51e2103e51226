"""Forward and backward pass of a training step, plain or compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

from models.replay import draw_sizes
from utils.console import log
from utils.errors import TOO_FEW_VALUES
from utils.step import CURRENT, Batch, Output, Step, StepIndex, forwards_of, total

if TYPE_CHECKING:
    from models.method import Method

T = TypeVar("T")
Batches = dict[str, Batch]
Weight = float | torch.Tensor | None  # of the norm's penalty
Groups = dict[str, torch.Tensor | None]
Computed = tuple[dict[str, Output], dict[str, torch.Tensor], torch.Tensor]  # outputs, loss terms and their sum


class StepRunner:
    """Computes loss and gradients of a method's steps."""

    def __init__(self, method: Method):
        self.method = method
        self.skipped_batches = 0  # batches of one image that the norm could not normalize

    def run(self, batches: Batches, index: StepIndex) -> Step:
        """Return the step with its loss; the parameters have their gradients."""
        method = self.method
        replayed = method.is_replay_step(batches)
        penalty_weight = method.net.norms.penalty_weight(index.task, replayed) or None
        groups = self.groups(batches, index.task, replayed=replayed)
        method.optimizer.zero_grad()
        compiled = method.compiled if method.compiled and self.is_full(batches, index) else None
        outputs, terms, loss = (compiled or self).compute(batches, groups, index, penalty_weight)
        loss.backward(retain_graph=method.keeps_graph)
        if compiled:
            compiled.commit()
        return Step(index, batches, outputs, terms, loss)

    def compute(self, batches: Batches, groups: Groups, index: StepIndex, penalty_weight: Weight) -> Computed:
        """Return outputs, loss terms and their sum: the part of a step that `--compile` makes one graph of."""
        outputs = self.forward(batches, groups, penalized=penalty_weight is not None)
        terms = self.method.loss(batches, outputs, index)
        if not isinstance(terms, dict):
            name = type(self.method).__name__
            raise TypeError(f"`loss` of {name} must return its terms by name, such as {{'labels': loss}}")
        penalties = [norms.penalty for norms in forwards_of(outputs) if norms.penalty is not None]
        if penalties and penalty_weight is not None:
            terms = terms | {"penalty": penalty_weight * total(penalties)}
        return outputs, terms, total(terms.values())

    def groups(self, batches: Batches, task: int, *, replayed: bool) -> Groups:
        """Return the group of every sample, by which norms weigh a batch; None for plain batch statistics."""
        if not replayed and len(batches) == 1:
            return dict.fromkeys(batches)
        norms = self.method.net.norms
        return {name: norms.groups(batch, task, drawn=name != CURRENT) for name, batch in batches.items()}

    def forward(self, batches: Batches, groups: Groups, *, penalized: bool) -> dict[str, Output]:
        """Return the outputs of all batches, from one forward pass (`--replay_forward joint`) or one for each."""
        net = self.method.net
        inputs = {name: batch.inputs for name, batch in batches.items() if batch.inputs is not None}
        if len(batches) == 1 or getattr(self.method.config, "replay_forward", None) != "joint":
            return {name: net.output(inputs[name], groups[name], penalized=penalized) for name in batches}
        parts = [group for group in groups.values() if group is not None]
        output = net.output(torch.cat(list(inputs.values())), torch.cat(parts) if parts else None, penalized=penalized)
        return dict(zip(batches, output.split([len(samples) for samples in inputs.values()]), strict=True))

    def is_full(self, batches: Batches, index: StepIndex) -> bool:
        """Return whether all batches have their full size; only such steps are compiled, in a resumed run the same."""
        buffer, config = self.method.buffer, self.method.config
        draws = draw_sizes(config, len(self.method.replay_draws_for_step(index)), index.task + 1)
        full_sizes = [config.batch_size, *(size for size in draws if size)]
        return (buffer is None or len(buffer) > 0) and [len(batch) for batch in batches.values()] == full_sizes

    def skip_unnormalizable_batch(self, size: int, learn: Callable[[], T]) -> T | None:
        """Return `learn()`; None, with the network as before, if the norm cannot normalize a single last image."""
        if size > 1 or self.method.config.batch_size == 1:
            return learn()
        before = {name: buffer.clone() for name, buffer in self.method.net.named_buffers()}
        try:
            return learn()
        except ValueError as error:
            if TOO_FEW_VALUES not in str(error):
                raise
        for name, buffer in self.method.net.named_buffers():
            buffer.copy_(before[name])
        if not self.skipped_batches:
            log.info("the last batch of an epoch is a single image, which this norm cannot normalize; it is left out")
        self.skipped_batches += 1
        return None
