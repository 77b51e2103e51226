"""GDumb: its learning rates and CutMix by hand, what it fits and from where, and runs that are cut off."""

from copy import deepcopy
from math import log, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from models.gdumb import Gdumb, cutmix_box, fitting_rate
from tests.helpers import CPU, assert_close, build_run, make_spec, make_stream, sample_numbers, weights_of
from utils.config.resolve import resolve
from utils.data.augment import Augment, Crop
from utils.errors import RunFailed
from utils.run.build import build_network
from utils.run.observers import Observer
from utils.run.training import Training
from utils.step import StepIndex

FIRST_RATES = [
    0.005,  # a tenth of the largest
    0.05,  # a period of one epoch
    *(0.05, 0.02525),  # of two, in the middle of the cosine
    *(0.05, 0.0005 + 0.0495 * (1 + sqrt(0.5)) / 2, 0.02525, 0.0005 + 0.0495 * (1 - sqrt(0.5)) / 2),  # of four
    *(0.05, 0.0005 + 0.0495 * (1 + sqrt(2 + sqrt(2)) / 2) / 2),  # of eight
]


def a_run(norm: str = "bn", *, between_tasks=None, **options):
    """(network, method, stream) with both tasks' samples in the buffer, before the end of the second."""
    spec = make_spec(train_sizes=(14, 14), augmentation=(Crop(1),))
    stream = make_stream(spec)
    options = {"fitting_epochs": 2, "batch_size": 4, "buffer_size": 10} | options
    net, method = build_run(gdumb_config(norm, **options), stream)
    step = 0
    for task in (0, 1):
        method.grow()
        for batch in stream.batches(task, 0, 0):
            method.step(batch, StepIndex(task, step))
            step += 1
        if between_tasks and task == 0:
            between_tasks(method, stream)
    return net, method, stream


def gdumb_config(norm: str, **options):
    small = {"model": "gdumb", "norm": norm, "backbone": "mlp", "dataset": "seq-cifar10", "hidden": 8}
    return resolve(small | {"device": "cpu", "log_every": 3} | options)


def assert_equal_weights(mine: dict, theirs: dict) -> None:
    assert [name for name, value in mine.items() if not torch.equal(value, theirs[name])] == []
    assert set(mine) == set(theirs)


# --- learning rates ---------------------------------------------------------------------------------------------


def test_learning_rates_of_the_first_ten_epochs():
    assert [fitting_rate(epoch, 0.05, 0.0005) for epoch in range(10)] == pytest.approx(FIRST_RATES, rel=1e-12)
    assert [fitting_rate(epoch, 0.05, 0.0005) for epoch in (16, 32, 64, 128)] == [0.05] * 4
    assert fitting_rate(255, 0.05, 0.0005) < 0.00051


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
def test_the_optimizer_has_these_rates_and_no_momentum(norm, monkeypatch):
    """For every group of parameters, those that came with a task too."""
    seen = []

    def look(method, task, epoch):
        seen.append({(group["lr"], group["momentum"]) for group in method.optimizer.param_groups})

    monkeypatch.setattr(Gdumb, "_fit_epoch", look)
    _, method, stream = a_run(norm, fitting_epochs=10)
    method.end_task(1, stream)
    assert [len(found) for found in seen] == [1] * 10
    rates, momenta = zip(*(found.pop() for found in seen), strict=True)
    assert rates == pytest.approx(FIRST_RATES, rel=1e-12)
    assert set(momenta) == {0}


# --- CutMix -----------------------------------------------------------------------------------------------------


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
    found = cutmix_box(*size, share, Draws(middles=middles))
    assert [(part.start, part.stop) for part in found] == [rows, columns]


class Saying:
    """A network that says known logits, and keeps what it was shown."""

    def __init__(self, *rows):
        self.logits = torch.tensor(rows, dtype=torch.float64).log()

    def __call__(self, inputs):
        self.shown = inputs
        return self.logits


def fitting_loss(inputs, labels, draw, alpha=1.0) -> tuple[float, torch.Tensor]:
    net = Saying([1, 2, 3, 4], [5, 1, 1, 1], [2, 2, 1, 5])
    method = Gdumb(net, SimpleNamespace(cutmix_alpha=alpha), make_spec(), None, None)
    loss = method._fitting_loss(inputs, torch.tensor(labels), draw)
    return loss.item(), net.shown


def three_images() -> torch.Tensor:
    """Of 4 x 4 pixels in two channels: 1, 2 and 3 everywhere."""
    return torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1, 1).expand(3, 2, 4, 4).contiguous()


def test_mixed_batch_and_loss_by_hand():
    """A box of rows 1 to 2 and columns 2 to 3 is 4 of 16 pixels. Labels are 3, 0, 3, those of the partners 0, 3, 3."""
    inputs = three_images()
    draw = Draws(coin=0.49, share=0.75, middles=(2, 3), partners=(1, 2, 0))
    loss, shown = fitting_loss(inputs, [3, 0, 3], draw)
    expected = three_images().numpy().copy()
    for sample, partner in ((0, 2), (1, 3), (2, 1)):
        expected[sample, :, 1:3, 2:4] = partner
    assert shown.tolist() == expected.tolist()
    assert torch.equal(inputs, three_images())
    own = -(log(4 / 10) + log(5 / 8) + log(5 / 10)) / 3
    partners = -(log(1 / 10) + log(1 / 8) + log(5 / 10)) / 3
    assert loss == pytest.approx(12 / 16 * own + 4 / 16 * partners, abs=1e-12)


def test_labels_mix_by_the_area_that_was_pasted():
    """At a corner only one of the four pixels lies inside."""
    draw = Draws(coin=0.0, share=0.75, middles=(0, 0), partners=(2, 1, 0))
    loss, shown = fitting_loss(three_images(), [1, 1, 0], draw)
    assert shown[:, 0, 0, 0].tolist() == [3, 2, 1]
    assert (shown.sum((1, 2, 3)) - three_images().sum((1, 2, 3))).tolist() == [2 * 2, 0, -2 * 2]
    own = -(log(2 / 10) + log(1 / 8) + log(2 / 10)) / 3
    partners = -(log(1 / 10) + log(1 / 8) + log(2 / 10)) / 3
    assert loss == pytest.approx(15 / 16 * own + 1 / 16 * partners, abs=1e-12)


@pytest.mark.parametrize(("alpha", "draw"), [(1.0, Draws(coin=0.5)), (1.0, Draws(coin=0.99)), (0.0, None)])
def test_the_other_half_of_the_batches_is_as_it_is(alpha, draw):
    loss, shown = fitting_loss(three_images(), [3, 0, 3], draw, alpha)
    assert torch.equal(shown, three_images())
    assert loss == pytest.approx(-(log(4 / 10) + log(5 / 8) + log(5 / 10)) / 3, abs=1e-12)


# --- the fitting ------------------------------------------------------------------------------------------------


def test_the_network_is_built_anew_at_the_end_of_every_task(monkeypatch):
    monkeypatch.setattr(Gdumb, "_fit_epoch", lambda *_: None)
    net, method, stream = a_run("bn")
    ends = []
    for task in (0, 1):
        for tensor in net.state_dict().values():
            tensor.fill_(7)
        method.end_task(task, stream)
        ends.append(weights_of(net))
        assert_equal_weights(ends[-1], weights_of(build_network(method.config, stream.spec, CPU, f"gdumb/{task}")))
    first = weights_of(build_network(method.config, stream.spec, CPU))
    assert not torch.equal(ends[0]["linear1.weight"], ends[1]["linear1.weight"])
    assert not torch.equal(ends[0]["linear1.weight"], first["linear1.weight"])


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
        net, method, stream = a_run(norm, between_tasks=before)
        torch.manual_seed(len(ends))  # nor does the global generator
        method.end_task(1, stream)
        ends.append(weights_of(net))
    assert_equal_weights(*ends)


def test_a_fitting_step_is_plain_sgd_on_the_buffer():
    """All of the buffer in one batch, without CutMix, in the epoch whose rate is a tenth of the largest."""
    spec = make_spec(train_sizes=(8, 8))
    stream = make_stream(spec, batch_size=8)
    config = gdumb_config(
        "bn", dtype="float64", fitting_epochs=1, batch_size=8, buffer_size=8, cutmix_alpha=0.0, maxlr=2.0, optim_wd=0.1
    )
    net, method = build_run(config, stream)
    method.grow()
    method.step(next(stream.batches(0, 0, 0)), StepIndex(0, 0))
    method.end_task(0, stream)
    fresh = build_network(config, spec, CPU, "gdumb/0").train()
    held = method.buffer.all_samples()
    assert set(held.labels.tolist()) == {0, 1}
    torch.nn.functional.cross_entropy(fresh(held.images.double() / 255), held.labels).backward()
    for (name, parameter), start in zip(net.named_parameters(), fresh.parameters(), strict=True):
        assert start.grad.abs().max() > 0, name
        assert_close(parameter.detach(), (start - 0.2 * (start.grad + 0.1 * start)).detach())


def test_every_epoch_of_the_fitting_sees_the_whole_buffer_once(monkeypatch):
    """In batches of `batch_size`, in another order every epoch; the images are augmented afresh."""
    seen = []
    original = Gdumb._fitting_loss

    def look(method, inputs, labels, draw):
        seen.append((inputs.clone(), labels))
        return original(method, inputs, labels, draw)

    monkeypatch.setattr(Gdumb, "_fitting_loss", look)
    _, method, stream = a_run("bn", fitting_epochs=2)
    seen.clear()
    method.end_task(1, stream)
    assert [len(labels) for _, labels in seen] == [4, 4, 2] * 2
    epochs = [torch.cat([labels for _, labels in part]) for part in (seen[:3], seen[3:])]
    for labels in epochs:
        assert sorted(labels.tolist()) == sorted(method.buffer.labels.tolist())
    assert epochs[0].tolist() != epochs[1].tolist()
    stored = {tuple(image.flatten().tolist()) for image in method.buffer.images.float() / 255}
    shown = [
        {tuple(image.flatten().tolist()) for inputs, _ in part for image in inputs} for part in (seen[:3], seen[3:])
    ]
    assert shown[0] != shown[1]
    assert not shown[0] <= stored


def test_every_fitting_batch_has_draws_of_its_own(monkeypatch):
    """Of augmentation and of CutMix, over tasks, epochs and the batches of an epoch."""
    crops, coins = [], []
    draw_crops, fitting_loss = Augment.draw, Gdumb._fitting_loss

    def note_crops(augment, *address):
        crops.append(draw_crops(augment, *address))
        return crops[-1]

    def note_coin(method, inputs, labels, draw):
        coins.append(deepcopy(draw).random())
        return fitting_loss(method, inputs, labels, draw)

    monkeypatch.setattr(Augment, "draw", note_crops)
    monkeypatch.setattr(Gdumb, "_fitting_loss", note_coin)
    _, method, stream = a_run("bn", between_tasks=lambda method, stream: method.end_task(0, stream))
    of_first = len(coins)
    assert of_first >= 4
    method.end_task(1, stream)
    assert len(coins) == len(crops) == of_first + 6
    assert len(set(coins)) == len(coins)
    assert len({drawn[:, :2].tobytes() for drawn in crops}) > len(crops) - 3  # of 81 possibilities


def test_fitting_is_no_replay_for_adab2n():
    """Plain batch statistics, no penalty even where all steps have one, and psi stays zero and without gradient."""
    ends = []
    for lambd in (0.0, 50.0):
        net, method, stream = a_run("adab2n", lambd=lambd, penalty_steps="all")
        asked, original = [], net.norms.forward_pass
        net.norms.forward_pass = lambda tasks, asked=asked, original=original, **named: (
            asked.append((tasks, named)) or original(tasks, **named)
        )
        method.end_task(1, stream)
        assert asked == [(None, {"penalized": False})] * 6
        assert [psi.tolist() for psi in net.norms.psi] == [[0.0, 0.0]] * 2
        assert all(psi.grad is None for psi in net.norms.psi)
        ends.append(weights_of(net))
    assert_equal_weights(*ends)


def test_a_fitting_that_diverges_fails_the_run():
    _, method, stream = a_run("bn", maxlr=1e30, fitting_epochs=4)
    with pytest.raises(RunFailed, match=r"task 2 diverged .* --maxlr"):
        method.end_task(1, stream)


# --- the stream -------------------------------------------------------------------------------------------------


class Notebook(Observer):
    def __init__(self):
        self.steps, self.logs = [], []

    def on_step(self, step):
        self.steps.append(step)

    def on_log(self, event):
        self.logs.append(event)


def test_the_stream_is_not_learned_from(monkeypatch):
    """Steps have no loss and no outputs, the log says so, and the weights stay as they are."""
    monkeypatch.setattr(Gdumb, "end_task", lambda *_: None)
    spec = make_spec(train_sizes=(14, 14))
    stream, notebook = make_stream(spec), Notebook()
    config = gdumb_config("bn", batch_size=4, buffer_size=10)
    net, method = build_run(config, stream)
    before = weights_of(net)
    Training(config, stream, method, [notebook]).run()
    assert len(notebook.steps) == 8
    assert all(step.loss is None and not step.loss_terms and not step.outputs for step in notebook.steps)
    assert [(event["step"], event["loss"], event["lr"]) for event in notebook.logs] == [
        (3, None, None), (4, None, None), (7, None, None), (8, None, None),
    ]  # fmt: skip
    assert_equal_weights(before, weights_of(net))


def test_further_epochs_bring_nothing_new():
    stream = make_stream(make_spec(train_sizes=(40, 40)))
    _, method = build_run(gdumb_config("bn", batch_size=4, buffer_size=60), stream)
    for epoch in (0, 1):
        for step, batch in enumerate(stream.batches(0, epoch, 0)):
            method.step(batch, StepIndex(0, 10 * epoch + step, epoch))
        assert sorted(sample_numbers(method.buffer.all_samples().images)) == list(range(40))
