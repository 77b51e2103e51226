"""`er_ace`: ER with Asymmetric Cross-Entropy (Caccia et al. 2022).

The current batch competes only with the classes in it and with classes not yet seen, so that it does not push away the
representations of old classes. The replayed batch competes with all classes. Both start with the second task. The
paper's loss has only the classes in the batch; the released code adds the unseen ones and the highest class seen.
Where task boundaries are not known, replay starts with the second batch, and the loss is the paper's from the first.
"""

from typing import Any

import torch
from torch.nn import functional as F

from models.method import Method
from utils.config.registry import MODELS
from utils.console import log
from utils.step import CURRENT, Batch, Output, StepIndex


def masked_classes(labels: torch.Tensor, highest_seen: torch.Tensor, n_classes: int) -> torch.Tensor:
    """Return a mask (classes,) of those below the highest one seen, or of all if all were seen, without the batch's."""
    first_unmasked = torch.where(highest_seen < n_classes - 1, highest_seen, n_classes)
    return (torch.arange(n_classes, device=labels.device) < first_unmasked).index_fill_(0, labels, False)


@MODELS.register("er_ace", help="experience replay with asymmetric cross-entropy")
class ErAce(Method):
    needs_own_classes = True
    compiles = True
    draw_names: tuple[str, ...] = ("replay",)

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        # On the device, so that the mask needs no copy from the host; always the same tensor, for compiled graphs.
        highest = -1 if self.spec.has_boundaries else self.n_classes - 1
        self.highest_seen = torch.tensor(highest, device=self.augment.scale.device)
        if self.spec.n_tasks == 1 and self.spec.has_boundaries:
            log.warning("er_ace replays from the second task on, and there is one task; see --boundary none")

    def has_past(self, index: StepIndex) -> bool:
        return not (index.first_task and self.spec.has_boundaries)

    def replay_draws_for_step(self, index: StepIndex) -> tuple[str, ...]:
        return super().replay_draws_for_step(index) if self.has_past(index) else ()

    def loss(self, batches: dict[str, Batch], outputs: dict[str, Output], index: StepIndex) -> dict[str, torch.Tensor]:
        labels, logits = batches[CURRENT].labels, outputs[CURRENT].logits
        self.highest_seen.copy_(torch.maximum(self.highest_seen, labels.max()))
        if self.has_past(index):
            mask = masked_classes(labels, self.highest_seen, self.n_classes)
            logits = logits.masked_fill(mask, torch.finfo(logits.dtype).min)
        terms = {CURRENT: F.cross_entropy(logits, labels)}
        if "replay" in batches:
            terms["replay"] = F.cross_entropy(outputs["replay"].logits, batches["replay"].labels)
        return terms

    def state_dict(self) -> dict[str, Any]:
        return {"highest_seen": self.highest_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.highest_seen.copy_(state["highest_seen"])
