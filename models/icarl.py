"""`icarl`: iCaRL (Rebuffi et al. 2017): exemplars chosen by herding, distillation, and the nearest mean of exemplars.

Outputs are sigmoids (Alg. 3). The targets of past classes are the outputs of the network at the end of the last task.
The exemplars join the data of every task. At the end of a task the exemplars of its classes are chosen so that their
mean embedding stays close to the mean of the class (Alg. 4); those of older classes are cut from the end (Alg. 5). A
sample is assigned to the class whose exemplars have the nearest mean embedding (Alg. 1). An evaluation within a task
computes the means anew, since training has moved the embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional as F

from models.method import BUFFER_OPTIONS, Method
from utils.config.registry import MODELS
from utils.data.buffer import MethodManaged
from utils.data.stream import Stream, StreamSpec, chunks, concatenated, index_batch
from utils.device import to_device
from utils.errors import UsageError
from utils.step import CURRENT, Batch, Output, StepIndex

if TYPE_CHECKING:
    from backbone.network import Network
    from utils.config.resolve import Config

CHUNK = 256  # images in a forward pass


def herd(embeddings: torch.Tensor, count: int) -> list[int]:
    """Return samples that, one after the other, keep the mean of those chosen closest to the mean of all (Alg. 4)."""
    mean, chosen_sum = embeddings.mean(0), embeddings.new_zeros(embeddings.shape[1])
    available, chosen = torch.ones(len(embeddings), dtype=torch.bool, device=embeddings.device), []
    for number in range(1, min(count, len(embeddings)) + 1):
        distance = (mean - (chosen_sum + embeddings) / number).square().sum(1)
        best = distance.masked_fill(~available, torch.inf).argmin(0, keepdim=True)
        chosen_sum = chosen_sum + embeddings.index_select(0, best).squeeze(0)
        available.index_fill_(0, best, False)
        chosen.append(best)
    return torch.cat(chosen).tolist() if chosen else []  # the only device sync


def class_sums(embeddings: torch.Tensor, labels: torch.Tensor, n_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of the embeddings (classes, features) and the number of samples (classes,) of every class."""
    is_member = F.one_hot(labels, n_classes).to(embeddings.dtype)  # (samples, classes)
    return is_member.T @ embeddings, is_member.sum(0)


@MODELS.register("icarl", help="herded exemplars, distillation, nearest mean of exemplars", numerics_version=1)
class Icarl(Method):
    needs_own_classes = True
    scores_unseen_classes = False
    # The loss has the classes seen; the means of exemplars are computed with the running statistics.
    unused_options = (*BUFFER_OPTIONS, "classifier", "eval_statistics")

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.past_net: Network | None = None  # the network at the end of the last task
        self.means: torch.Tensor | None = None  # by `_class_means`; None if they are to be computed

    @classmethod
    def buffer_policy(cls, config: Config, spec: StreamSpec) -> MethodManaged:
        if config.buffer_size < spec.n_classes:
            wanted = f"one exemplar for each of {spec.n_classes} classes"
            raise UsageError(f"--buffer_size {config.buffer_size} is less than {wanted}")
        return MethodManaged(config.buffer_size, spec)

    @classmethod
    def epoch_sizes(cls, config: Config, spec: StreamSpec, train_sizes: Sequence[int]) -> list[int]:
        sizes = []
        for task, size in enumerate(train_sizes):
            seen = spec.classes_of(task).start
            exemplars = config.buffer_size // seen * seen if seen else 0
            sizes.append(size + min(exemplars, sum(train_sizes[:task])))
        return sizes

    def extra_task_samples(self, task: int) -> Batch | None:
        return self.buffer.all_samples() if self.buffer is not None and len(self.buffer) else None

    def is_replay_step(self, batches: dict[str, Batch]) -> bool:
        return len(self.buffer or ()) > 0

    def loss(self, batches: dict[str, Batch], outputs: dict[str, Output], index: StepIndex) -> dict[str, torch.Tensor]:
        """Return the binary cross-entropy of the seen classes; targets of past ones are former outputs (Alg. 3)."""
        classes = self.spec.classes_of(index.task)
        batch, logits = batches[CURRENT], outputs[CURRENT].logits[:, : classes.stop]
        targets = F.one_hot(batch.labels, self.n_classes)[:, : classes.stop].to(logits.dtype)
        if self.past_net is not None:
            with torch.no_grad():
                past = self.past_net(batch.inputs)[:, : classes.start].sigmoid()
            targets = torch.cat([past, targets[:, classes.start :]], 1)
        return {"labels": F.binary_cross_entropy_with_logits(logits, targets)}

    def remember(self, batch: Batch, outputs: dict[str, Output], index: StepIndex) -> None:
        """Store nothing: exemplars are chosen at the end of a task. The step has moved their embeddings."""
        self.means = None

    @torch.no_grad()
    def end_task(self, task: int, stream: Stream) -> None:
        assert self.buffer is not None
        self.net.eval()
        per_class = self.buffer.policy.capacity // self.spec.classes_of(task).stop
        parts = []
        if (old := self.extra_task_samples(task)) is not None:  # cut from the end (Alg. 5)
            for label in np.unique(old.labels_host):
                parts.append(index_batch(old, np.flatnonzero(old.labels_host == label)[:per_class]))
        self.buffer.add(concatenated([*parts, self._choose_exemplars(task, stream, per_class)]))
        self.means = self._class_means()
        self.past_net = deepcopy(self.net).requires_grad_(False)

    def _choose_exemplars(self, task: int, stream: Stream, per_class: int) -> Batch:
        """Return the exemplars of the task's classes. Two passes over its images avoid holding all of them."""
        passed = [(batch.labels_host, self._embed(batch)) for batch in stream.in_order(task, CHUNK)]
        labels, embeddings = np.concatenate([part for part, _ in passed]), torch.cat([part for _, part in passed])
        parts = []
        for label in self.spec.classes_of(task):
            members = np.flatnonzero(labels == label)
            own = embeddings.index_select(0, to_device(members, embeddings.device))
            parts.append(members[herd(own, per_class)])
        chosen, batches = np.concatenate(parts), []
        for number, batch in enumerate(stream.in_order(task, CHUNK)):
            index = np.sort(chosen) - number * CHUNK
            batches.append(index_batch(batch, index[(index >= 0) & (index < len(batch))]))
        return index_batch(concatenated(batches), np.argsort(np.argsort(chosen)))

    def _embed(self, data: Batch, *, mirrored: bool = False) -> torch.Tensor:
        """Return embeddings of unaugmented images, scaled to length 1."""
        images = (batch.images.flip(3) if mirrored else batch.images for batch in chunks(data, CHUNK))
        embeddings = (self.net.output(self.augment.normalize(part)).embedding for part in images)
        return torch.cat([F.normalize(embedding, dim=1) for embedding in embeddings])

    @torch.no_grad()
    def _class_means(self) -> torch.Tensor | None:
        """Return (classes, features), NaN for a class without exemplars; None before the first task's end."""
        if (exemplars := self.extra_task_samples(0)) is None:
            return None
        embeddings = self._embed(exemplars) + self._embed(exemplars, mirrored=True)
        sums, counts = class_sums(embeddings, exemplars.labels, self.n_classes)
        return F.normalize(sums, dim=1).masked_fill((counts == 0)[:, None], torch.nan)

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return minus the distance to the means (Alg. 1); before the first task's end, the network's logits."""
        if self.means is None:
            self.means = self._class_means()
        if self.means is None:
            return self.net(inputs)
        embedding = F.normalize(self.net.output(inputs).embedding, dim=1)
        return (-torch.cdist(embedding, self.means)).nan_to_num(nan=-torch.inf)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.past_net is None else {"means": self.means, "before": dict(self.past_net.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            assert self.new_network is not None
            self.means = None if state["means"] is None else state["means"].to(self.augment.scale.device)
            self.past_net = self.new_network("init").eval().requires_grad_(False)
            self.past_net.load_state_dict(state["before"])
