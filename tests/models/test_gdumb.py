"""GDumb: its learning rates and CutMix by hand, what it fits and from where."""

from math import log, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from models.gdumb import Gdumb, cutmix_box, fitting_rate
from tests.helpers import CPU, assert_close, build_run, make_spec, make_stream, run_config, weights_of
from utils.data.augment import Crop
from utils.errors import RunFailed
from utils.run.build import build_network
from utils.step import StepIndex

FIRST_RATES = [
    0.005,  # a tenth of the largest
    0.05,  # a period of one epoch
    *(0.05, 0.02525),  # of two, in the middle of the cosine
    *(0.05, 0.0005 + 0.0495 * (1 + sqrt(0.5)) / 2, 0.02525, 0.0005 + 0.0495 * (1 - sqrt(0.5)) / 2),  # of four
    *(0.05, 0.0005 + 0.0495 * (1 + sqrt(2 + sqrt(2)) / 2) / 2),  # of eight
]


def before_end_of_second_task(norm: str = "bn", *, between_tasks=None, **options):
    """Return (network, method, stream) with both tasks' samples in the buffer."""
    stream = make_stream(make_spec(train_sizes=(14, 14), augmentation=(Crop(1),)))
    net, method = build_run(run_config("gdumb", norm, **{"fitting_epochs": 2, "buffer_size": 10} | options), stream)
    step = 0
    for task in (0, 1):
        method.grow()
        for batch in stream.batches(task, 0, 0):
            method.step(batch, StepIndex(task, step))
            step += 1
        if between_tasks and task == 0:
            between_tasks(method, stream)
    return net, method, stream


def assert_equal_weights(mine: dict, theirs: dict) -> None:
    assert mine.keys() == theirs.keys()
    assert [name for name, value in mine.items() if not torch.equal(value, theirs[name])] == []


def test_learning_rates():
    assert [fitting_rate(epoch, 0.05, 0.0005) for epoch in range(10)] == pytest.approx(FIRST_RATES, rel=1e-12)
    assert [fitting_rate(epoch, 0.05, 0.0005) for epoch in (16, 32, 64, 128)] == [0.05] * 4
    assert fitting_rate(255, 0.05, 0.0005) < 0.00051


class Draws:
    """Stands in for a generator whose draws are known."""

    def __init__(self, *, coin=0.0, share=1.0, middles=(), partners=()):
        self.coin, self.share, self.middles, self.partners = coin, share, list(middles), partners

    def random(self):
        return self.coin

    def beta(self, a, b):
        assert a == b == 1.0
        return self.share

    def integers(self, size):
        middle = self.middles.pop(0)
        assert middle < size
        return middle

    def permutation(self, count):
        assert len(self.partners) == count
        return np.array(self.partners)


@pytest.mark.parametrize(
    ("size", "share", "middles", "rows", "columns"),
    [
        ((8, 8), 0.75, (3, 4), (1, 5), (2, 6)),  # half of each side: four pixels about the middle
        ((8, 8), 0.75, (0, 7), (0, 2), (5, 8)),  # what lies outside is cut off
        ((8, 12), 0.75, (4, 6), (2, 6), (3, 9)),
        ((8, 8), 0.0, (4, 4), (0, 8), (0, 8)),
        ((8, 8), 1.0, (5, 2), (5, 5), (2, 2)),
        ((10, 10), 0.51, (5, 5), (2, 8), (2, 8)),  # 7 pixels are not even: 3 to both sides
    ],
)
def test_box_of_cutmix(size, share, middles, rows, columns):
    box = cutmix_box(*size, share, Draws(middles=middles))
    assert [(part.start, part.stop) for part in box] == [rows, columns]


def logs_of(*probabilities: float) -> float:
    return -sum(map(log, probabilities)) / len(probabilities)


OWN = logs_of(4 / 10, 5 / 8, 5 / 10)  # of labels 3, 0, 3


@pytest.mark.parametrize(
    ("alpha", "draws", "box", "expected"),
    [
        # Rows 1 to 2 and columns 2 to 3 are 4 of 16 pixels. The partners' labels are 0, 3, 3.
        (
            1.0,
            {"coin": 0.49, "share": 0.75, "middles": (2, 3), "partners": (1, 2, 0)},
            (slice(1, 3), slice(2, 4)),
            12 / 16 * OWN + 4 / 16 * logs_of(1 / 10, 1 / 8, 5 / 10),
        ),
        # At a corner only one of the four pixels lies inside. The partners' labels are 3, 0, 3, too.
        (1.0, {"share": 0.75, "middles": (0, 0), "partners": (2, 1, 0)}, (slice(0, 1), slice(0, 1)), OWN),
        (1.0, {"coin": 0.5, "partners": (0, 1, 2)}, (slice(0), slice(0)), OWN),
        (1.0, {"coin": 0.99, "partners": (0, 1, 2)}, (slice(0), slice(0)), OWN),
        (0.0, {"partners": (0, 1, 2)}, (slice(0), slice(0)), OWN),
    ],
)
def test_mixed_batch_and_loss_by_hand(alpha, draws, box, expected):
    """Three images of 4 x 4 pixels in two channels: 1, 2 and 3 everywhere."""
    inputs = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1, 1).expand(3, 2, 4, 4).contiguous()
    logits = torch.tensor([[1, 2, 3, 4], [5, 1, 1, 1], [2, 2, 1, 5]], dtype=torch.float64).log()
    mixed, seen = inputs.clone(), []
    mixed[:, :, box[0], box[1]] = inputs[list(draws["partners"])][:, :, box[0], box[1]]
    net = lambda images: seen.append(images) or logits  # noqa: E731
    method = Gdumb(net, SimpleNamespace(cutmix_alpha=alpha), make_spec(), None, None)
    loss = method._fitting_loss(inputs, torch.tensor([3, 0, 3]), Draws(**draws))
    assert torch.equal(seen[0], mixed)
    assert inputs[:, 0].mean((1, 2)).tolist() == [1, 2, 3]  # unchanged
    assert loss.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
def test_what_was_fitted_before_does_not_matter(norm):
    """Once after a fitting of the first task, once after rubbish in its place: weights, statistics, counters agree."""

    def fit(method, stream):
        method.end_task(0, stream)

    def spoil(method, stream):
        for tensor in method.net.state_dict().values():
            tensor.fill_(3)
        method.net.eval()

    ends = []
    for before in (fit, spoil):
        net, method, stream = before_end_of_second_task(norm, between_tasks=before)
        torch.manual_seed(len(ends))  # nor does the global generator
        method.end_task(1, stream)
        ends.append(weights_of(net))
    assert_equal_weights(*ends)


@pytest.mark.parametrize(
    ("options", "largest"), [({}, 10), ({"max_grad_norm": 0.1}, 0.1), ({"max_grad_norm": 0.0, "optim_mom": 0.0}, None)]
)
def test_steps_of_the_fitting(options, largest):
    """All of the buffer in one batch, without CutMix, in three epochs, the first at a tenth of the largest rate."""
    stream = make_stream(make_spec(train_sizes=(8, 8)), batch_size=8)
    options = {"fitting_epochs": 3, "batch_size": 8, "buffer_size": 8, "cutmix_alpha": 0.0, "maxlr": 2.0} | options
    config = run_config("gdumb", dtype="float64", **options)
    assert (config.optim_mom, config.optim_wd) == (options.get("optim_mom", 0.9), 1e-6)
    net, method = build_run(config, stream)
    method.grow()
    method.step(next(stream.batches(0, 0, 0)), StepIndex(0, 0))
    method.end_task(0, stream)
    twin = build_network(config, stream.spec, CPU, "gdumb/0").train()
    held = method.buffer.all_samples()
    assert set(held.labels.tolist()) == {0, 1}
    moved = [torch.zeros_like(parameter) for parameter in twin.parameters()]
    lengths = []
    for rate in (0.2, 2.0, 2.0):
        twin.zero_grad()
        torch.nn.functional.cross_entropy(twin(held.images.double() / 255), held.labels).backward()
        lengths.append(sqrt(sum(parameter.grad.square().sum().item() for parameter in twin.parameters())))
        share = min(1, largest / (lengths[-1] + 1e-6)) if largest else 1
        with torch.no_grad():
            for parameter, before in zip(twin.parameters(), moved, strict=True):
                before.mul_(config.optim_mom).add_(share * parameter.grad + 1e-6 * parameter)
                parameter -= rate * before
    assert largest is None or (max(lengths) > largest) == (largest < 1)
    for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        assert_close(ours.detach(), theirs.detach(), atol=1e-10)


def test_fitting_is_no_replay_for_adab2n():
    """Plain batch statistics, no penalty even where all steps have one, and psi stays zero and without gradient."""
    ends = []
    for lambd in (0.0, 50.0):
        net, method, stream = before_end_of_second_task("adab2n", lambd=lambd, penalty_steps="all")
        asked, original = [], net.norms.forward_pass
        net.norms.forward_pass = lambda tasks, asked=asked, original=original, **named: (
            asked.append((tasks, named)) or original(tasks, **named)
        )
        method.end_task(1, stream)
        assert asked == [(None, {"penalized": False})] * 6
        assert [(psi.tolist(), psi.grad) for psi in net.norms.psi] == [([0.0, 0.0], None)] * 2
        ends.append(weights_of(net))
    assert_equal_weights(*ends)


def test_a_fitting_that_diverges_fails_the_run():
    _, method, stream = before_end_of_second_task("bn", maxlr=1e30, fitting_epochs=4)
    with pytest.raises(RunFailed, match="--maxlr"):
        method.end_task(1, stream)
