"""`icarl`: iCaRL (Rebuffi et al. 2017): exemplars picked by herding, distillation, and the nearest mean of exemplars.

Outputs are sigmoids. For classes of past tasks the targets are what the network said of the sample at the end of the
last task. The exemplars join every task's data; at its end those of its classes are picked so that their mean embedding
stays close to the class's, and those of older classes are cut from the end. A sample belongs to the class whose
exemplars' mean embedding is nearest.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from torch.nn import functional as F

from models.method import Method
from utils.config.registry import MODELS
from utils.data.buffer import Replaced
from utils.data.stream import chunks, concatenated, picked
from utils.device import to_device
from utils.errors import UsageError
from utils.step import CURRENT, Batch

CHUNK = 256


def herded(embeddings: torch.Tensor, count: int) -> list[int]:
    """Which samples, one after the other, keep the mean of those picked closest to the mean of all."""
    mean, total = embeddings.mean(0), embeddings.new_zeros(embeddings.shape[1])
    is_left, picked = torch.ones(len(embeddings), dtype=torch.bool, device=embeddings.device), []
    for number in range(1, min(count, len(embeddings)) + 1):
        distance = (mean - (total + embeddings) / number).square().sum(1)
        best = distance.masked_fill(~is_left, torch.inf).argmin(0, keepdim=True)
        total = total + embeddings.index_select(0, best).squeeze(0)
        is_left.index_fill_(0, best, False)
        picked.append(best)
    return torch.cat(picked).tolist() if picked else []  # the only wait


@MODELS.register("icarl", help="herded exemplars, distillation, nearest mean of exemplars")
class Icarl(Method):
    needs_own_classes = True
    scores_unseen_classes = False
    unused_options = (
        "minibatch_size", "current_share", "balance_replay", "replay_iters", "buffer_mode", "ring_quota",
        "replay_forward", "eval_statistics",  # the means of exemplars are taken with the running ones
    )  # fmt: skip

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.before: torch.nn.Module | None = None  # the network at the end of the last task
        self.means: torch.Tensor | None = None  # (classes, features); NaN for a class without exemplars

    @classmethod
    def buffer_policy(cls, config, spec):
        if config.buffer_size < spec.n_classes:
            raise UsageError(f"--buffer_size {config.buffer_size} leaves some of {spec.n_classes} classes no exemplar")
        return Replaced(config.buffer_size)

    @classmethod
    def epoch_sizes(cls, config, spec, train_sizes):
        sizes = []
        for task, size in enumerate(train_sizes):
            seen = spec.classes_of(task).start
            exemplars = config.buffer_size // seen * seen if seen else 0
            sizes.append(size + min(exemplars, sum(train_sizes[:task])))
        return sizes

    # --- learning ------------------------------------------------------------------------------------------------

    def joined(self, task):
        return self.buffer.everything() if len(self.buffer) else None

    def replayed(self, batches):
        return len(self.buffer) > 0

    def loss(self, batches, outputs, place):
        own = self.spec.classes_of(place.task)
        batch, logits = batches[CURRENT], outputs[CURRENT].logits[:, : own.stop]
        targets = F.one_hot(batch.labels, self.n_classes)[:, : own.stop].to(logits.dtype)
        if self.before is not None:
            with torch.no_grad():
                past = self.before(batch.inputs)[:, : own.start].sigmoid()
            targets = torch.cat([past, targets[:, own.start :]], 1)
        return {"labels": F.binary_cross_entropy_with_logits(logits, targets)}

    def remember(self, batch, outputs, place): ...  # exemplars are picked at the end of a task

    # --- the end of a task ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def end_task(self, task, stream):
        self.net.eval()
        seen = self.spec.classes_of(task).stop
        self.buffer.add(self._exemplars(task, stream, self.buffer.policy.capacity // seen))
        self.means = self._means()
        self.before = deepcopy(self.net).requires_grad_(False)

    def _exemplars(self, task: int, stream, per_class: int) -> Batch:
        """Those of older classes, and of the task's own those that herding picks. Its images are gone through twice, so
        that they need not all be held."""
        held, labels, embeddings = self.buffer.everything(), [], []
        for batch in stream.in_order(task, CHUNK):
            labels.append(batch.labels_host)
            embeddings.append(self._embeddings(batch))
        labels, embeddings = np.concatenate(labels), torch.cat(embeddings)
        parts = []
        for label in np.unique(held.labels_host):
            parts.append(self._at(held, np.flatnonzero(held.labels_host == label)[:per_class]))
        chosen = []
        for label in self.spec.classes_of(task):
            members = np.flatnonzero(labels == label)
            own = embeddings.index_select(0, to_device(members, embeddings.device))
            chosen.append(members[herded(own, per_class)])
        return concatenated([*parts, self._of_stream(task, stream, np.concatenate(chosen))])

    def _of_stream(self, task: int, stream, index: np.ndarray) -> Batch:
        """The samples of a task with these numbers."""
        found, start = [], 0
        for batch in stream.in_order(task, CHUNK):
            inside = index[(index >= start) & (index < start + len(batch))]
            found.append(self._at(batch, np.sort(inside) - start))
            start += len(batch)
        return self._at(concatenated(found), np.argsort(np.argsort(index)))

    def _at(self, data: Batch, index: np.ndarray) -> Batch:
        return picked(data, index, to_device(index, data.labels.device))

    def _means(self) -> torch.Tensor:
        """Of the exemplars and their mirror images, brought back to length 1."""
        held = self.buffer.everything()
        both = self._embeddings(held) + self._embeddings(held, mirrored=True)
        is_of = F.one_hot(held.labels, self.n_classes).to(both.dtype)  # (exemplars, classes)
        sums = is_of.T @ both
        means = F.normalize(sums, dim=1)
        return means.masked_fill((is_of.sum(0) == 0)[:, None], torch.nan)

    def _embeddings(self, data: Batch, *, mirrored: bool = False) -> torch.Tensor:
        """Of unaugmented images, of length 1."""
        found = []
        for batch in chunks(data, CHUNK):
            images = batch.images.flip(3) if mirrored else batch.images
            found.append(F.normalize(self.net.output(self.augment.normalize(images)).embedding, dim=1))
        return torch.cat(found)

    # --- prediction and state ------------------------------------------------------------------------------------

    def predict(self, inputs):
        """Minus the distance to the means; before there are any, the network's own logits."""
        if self.means is None:
            return self.net(inputs)
        embedding = F.normalize(self.net.output(inputs).embedding, dim=1)
        return (-torch.cdist(embedding, self.means)).nan_to_num(nan=-torch.inf)

    def state_dict(self):
        if self.means is None:
            return {}
        return {"means": self.means, "before": dict(self.before.state_dict())}

    def load_state_dict(self, state):
        if state:
            self.means = state["means"].to(self.augment.scale.device)
            self.before = self.new_network("init").eval()
            self.before.load_state_dict(state["before"])
            self.before.requires_grad_(False)
