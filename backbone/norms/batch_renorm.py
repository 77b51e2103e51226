"""`brn`: Batch Renormalization (Ioffe 2017): BN whose training forward is brought near to what its testing will do.

    x = (a - mu_B) / sigma_B * r + d
    r = clip(sigma_B / sigma, 1/r_max, r_max)
    d = clip((mu_B - mu) / sigma, -d_max, d_max)

mu and sigma are the running statistics before this batch; r and d are constants of the backward. Unclipped, x would be
(a - mu) / sigma, as in testing. At first r_max is 1 and d_max 0, which is BN.
"""

import torch
from torch.nn import functional as F

from backbone.adab2n.weighted import compute_dtype
from backbone.norms.batch_norm import MOMENTUM, BatchNorm
from utils.config.options import Option, integer
from utils.config.registry import NORMS

R_MAX, D_MAX = 3.0, 5.0
TEXT = "Updates over which brn departs from bn: r_max 1 to 3, d_max 0 to 5."
WARMUP = Option("brn_warmup", integer(0), TEXT, default=1000)


class BatchRenorm(BatchNorm):
    """`num_batches_tracked`, which torch's layer has, counts the updates of the warm-up."""

    def __init__(self, channels: int, *, warmup: int):
        super().__init__(channels)
        self.warmup = warmup

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(a)
        r, d = self.corrections(a)
        # They are part of the scale and shift: the pass over the activation is BN's, forwards and backwards.
        weight, bias = self.weight * r, self.weight * d + self.bias
        out = F.batch_norm(a, self.running_mean, self.running_var, weight, bias, True, MOMENTUM, self.eps)
        self.num_batches_tracked.add_(1)
        return out

    @torch.no_grad()
    def corrections(self, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return r and d of the layer's next update, (C,) each."""
        # For its statistics alone: BN's own kernel is several times as fast as `var_mean` on CPUs.
        _, mean, inverse = torch.native_batch_norm(a.to(compute_dtype(a)), None, None, None, None, True, 0.0, self.eps)
        sigma = (self.running_var + self.eps).sqrt()
        # On the device, because the bounds change during the warm-up.
        share = (self.num_batches_tracked.double() / max(self.warmup, 1)).clamp(min=float(not self.warmup), max=1)
        r_max, d_max = 1 + (R_MAX - 1) * share, D_MAX * share
        r = torch.clamp(1 / (inverse * sigma), 1 / r_max, r_max)
        return r, torch.clamp((mean - self.running_mean) / sigma, -d_max, d_max)


@NORMS.register("brn", help="batch renormalization", options=(WARMUP,))
def batch_renorm(channels: int, *, spatial: tuple[int, ...] | None, brn_warmup: int) -> BatchRenorm:
    return BatchRenorm(channels, warmup=brn_warmup)
