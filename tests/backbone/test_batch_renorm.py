"""`brn` against numbers worked out by hand: its corrections, that they are constants, and its warm-up."""

from math import sqrt

import pytest
import torch
from torch import nn

from backbone.norms import norm_factory
from backbone.norms.batch_renorm import BatchRenorm
from tests.helpers import assert_close

EPS = 1e-5
BATCH = (1.0, 3.0, 5.0, 7.0)  # mean 4, variance 5
SIGMA_B = sqrt(5 + EPS)


def batch() -> torch.Tensor:
    """Return two samples of one channel and two pixels."""
    return torch.tensor(BATCH, dtype=torch.float64).view(2, 1, 1, 2)


def layer_at(mean: float, var: float, *, warmup: int = 0, gamma: float = 1.0, beta: float = 0.0) -> BatchRenorm:
    """Return a layer with these running statistics."""
    layer = norm_factory("brn", brn_warmup=warmup)(1, spatial=(1, 2)).double()
    layer.running_mean.fill_(mean)
    layer.running_var.fill_(var)
    nn.init.constant_(layer.weight, gamma)
    nn.init.constant_(layer.bias, beta)
    return layer


# (running mean, running variance) and the r and d that they give: the ratio of deviations lies in [1/3, 3], the
# distance of means in [-5, 5]
SIGMA_2 = sqrt(4 + EPS)
CASES = {
    "as the batch": (4.0, 5.0, 1.0, 0.0),
    "neither clipped": (1.0, 4.0, SIGMA_B / SIGMA_2, 3 / SIGMA_2),
    "d negative": (13.0, 4.0, SIGMA_B / SIGMA_2, -9 / SIGMA_2),
    "r clipped above": (4.0, 0.05, 3.0, 0.0),
    "r clipped below": (4.0, 500.0, 1 / 3, 0.0),
    "d clipped above": (-7.0, 4.0, SIGMA_B / SIGMA_2, 5.0),
    "d clipped below": (15.0, 4.0, SIGMA_B / SIGMA_2, -5.0),
    "both clipped": (0.0, 0.01, 3.0, 5.0),
}
each_case = pytest.mark.parametrize(("mean", "var", "r", "d"), CASES.values(), ids=CASES)


@each_case
def test_output_and_gradients_by_hand(mean, var, r, d):
    """r and d are constants: the gradient is BN's, times r. Were they not, unclipped ones would leave gamma / sigma."""
    layer, x = layer_at(mean, var, gamma=2.0, beta=-1.0), batch().requires_grad_()
    direction = torch.tensor([1.0, -2.0, 0.5, 4.0], dtype=torch.float64).view_as(x)
    out = layer(x)
    unit = (x.detach() - 4) / SIGMA_B
    assert_close(out, 2 * (unit * r + d) - 1)
    (out * direction).sum().backward()
    of_bn = (direction - direction.mean() - unit * (direction * unit).mean()) / SIGMA_B
    assert_close(x.grad, 2 * r * of_bn)
    assert_close(layer.weight.grad, (direction * (unit * r + d)).sum().view(1))
    assert_close(layer.bias.grad, direction.sum().view(1))


def corrections_after(layer: BatchRenorm, updates: int) -> tuple[float, float]:
    """Return r and d of the update after so many, read off an output where both are clipped however far they go."""
    for _ in range(updates):
        layer(batch())
    layer.running_mean.fill_(-1000.0)
    layer.running_var.fill_(1e-4)
    low, high = layer(batch()).flatten()[[0, 3]].tolist()
    return (high - low) / (6 / SIGMA_B), (high + low) / 2


@pytest.mark.parametrize(
    ("warmup", "updates", "r", "d"),
    [
        (1000, 0, 1.0, 0.0),
        (1000, 1, 1.002, 0.005),
        (8, 6, 2.5, 3.75),
        (8, 8, 3.0, 5.0),
        (0, 0, 3.0, 5.0),
        (1, 0, 1.0, 0.0),
        (1, 1, 3.0, 5.0),
    ],
)
def test_bounds_grow_linearly_with_the_updates(warmup, updates, r, d):
    assert corrections_after(layer_at(0.0, 1.0, warmup=warmup), updates) == pytest.approx((r, d), abs=1e-12)


def test_only_updates_count():
    """Testing does not, nor does a batch that was refused; a saved layer goes on where it was."""
    layer = layer_at(0.0, 1.0, warmup=8)
    layer(batch())
    layer.eval()(batch())
    layer.train()
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        layer(torch.ones(1, 1, 1, 1, dtype=torch.float64))
    layer(batch())
    other = layer_at(0.0, 1.0, warmup=8)
    other.load_state_dict(layer.state_dict())
    for each in (layer, other):
        assert corrections_after(each, 0) == pytest.approx((1.5, 1.25), abs=1e-12)
