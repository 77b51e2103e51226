"""GDumb: its learning rates and CutMix by hand, what it fits and from where, and runs that are cut off."""

from copy import deepcopy
from math import log, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import utils.run.training
from models.gdumb import Gdumb, cutmix_box, fitting_rate
from tests.helpers import CPU, assert_close, build_run, make_spec, make_stream, sample_numbers, weights_of
from tests.models.cut_off import (
    SMALL,
    assert_a_cut_off_run_ends_the_same,
    assert_same,
    counted,
    finished,
    killed,
    killed_in,
    newest_state,
)
from utils.config.arguments import resolve
from utils.data.augment import Augment, Crop
from utils.errors import RunFailed, UsageError
from utils.run.build import build_network
from utils.run.observers import Observer
from utils.run.training import Training
from utils.step import Place

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
            method.step(batch, Place(task, step))
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
        method.end_task(1, stream)
        ends.append(weights_of(net))
    assert_equal_weights(*ends)


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
def test_fitting_is_deterministic(norm):
    ends = []
    for noise in (0, 5):
        net, method, stream = a_run(norm)
        torch.manual_seed(noise)
        for _ in range(1 + noise % 2):  # a second time in the same object, too
            method.end_task(1, stream)
        ends.append(weights_of(net))
    assert_equal_weights(*ends)
    net, method, stream = a_run(norm, seed=1)
    method.end_task(1, stream)
    assert not torch.equal(net.linear1.weight, ends[0]["linear1.weight"])


def test_a_fitting_step_is_plain_sgd_on_the_buffer():
    """All of the buffer in one batch, without CutMix, in the epoch whose rate is a tenth of the largest."""
    spec = make_spec(train_sizes=(8, 8))
    stream = make_stream(spec, batch_size=8)
    config = gdumb_config(
        "bn", dtype="float64", fitting_epochs=1, batch_size=8, buffer_size=8, cutmix_alpha=0.0, maxlr=2.0, optim_wd=0.1
    )
    net, method = build_run(config, stream)
    method.grow()
    method.step(next(stream.batches(0, 0, 0)), Place(0, 0))
    method.end_task(0, stream)
    fresh = build_network(config, spec, CPU, "gdumb/0").train()
    held = method.buffer.everything()
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
    with pytest.raises(RunFailed, match=r"fitting of task 2 diverged in epoch \d; a smaller --maxlr"):
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
    assert all(step.loss is None and not step.losses and not step.outputs for step in notebook.steps)
    assert [(event["step"], event["loss"], event["lr"]) for event in notebook.logs] == [
        (3, None, None), (4, None, None), (7, None, None), (8, None, None),
    ]  # fmt: skip
    assert_equal_weights(before, weights_of(net))


def test_the_buffer_is_balanced():
    stream = make_stream(make_spec(train_sizes=(40, 40)))
    config = gdumb_config("bn", batch_size=4, buffer_size=12, fitting_epochs=1)
    _, method = build_run(config, stream)
    Training(config, stream, method).run()
    whole = method.buffer.everything()
    assert np.bincount(whole.labels_host, minlength=4).tolist() == [3, 3, 3, 3]
    assert whole.labels_host.tolist() == stream.train_data.labels_host[sample_numbers(whole.images)].tolist()


def test_further_epochs_bring_nothing_new():
    stream = make_stream(make_spec(train_sizes=(40, 40)))
    _, method = build_run(gdumb_config("bn", batch_size=4, buffer_size=60), stream)
    for epoch in (0, 1):
        for step, batch in enumerate(stream.batches(0, epoch, 0)):
            method.step(batch, Place(0, 10 * epoch + step, epoch))
        assert sorted(sample_numbers(method.buffer.everything().images)) == list(range(40))


@pytest.mark.parametrize(
    "flag", ["lr", "optim_mom", "minibatch_size", "buffer_mode", "ring_quota", "replay_forward", "lr_milestones"]
)
def test_flags_of_training_on_the_stream_are_refused(flag):
    with pytest.raises(UsageError, match=f"--{flag} means nothing to --model gdumb"):
        gdumb_config("bn", buffer_size=10, **{flag: 1})


def test_defaults():
    config = gdumb_config("bn", buffer_size=10)
    assert (config.fitting_epochs, config.maxlr, config.minlr, config.cutmix_alpha) == (256, 0.05, 0.0005, 1.0)


# --- runs that are cut off --------------------------------------------------------------------------------------


def words(norm: str) -> list[str]:
    return ["--model", "gdumb", "--norm", norm, "--buffer_size", "50", "--fitting_epochs", "4"]


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
def test_a_run_that_is_cut_off_ends_the_same(tmp_path, norm):
    expected = assert_a_cut_off_run_ends_the_same(tmp_path, *words(norm), at=(5, 8, 19))
    logs = [line for line in expected["log"] if line["event"] == "log"]
    assert len(logs) == 15
    assert all(line["loss"] is None and line["lr"] is None for line in logs)


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
def test_a_fitting_that_is_cut_off_is_repeated(tmp_path, norm):
    """In the third epoch of the second task's fitting: four epochs of that task and of each of the three after it."""
    command = [*words(norm), *SMALL]
    expected = finished(tmp_path / "straight", *command)
    with killed_in(Gdumb, "_fit_epoch", 7):
        killed(tmp_path / "killed", *command)
    cursor = newest_state(tmp_path / "killed")["cursor"]
    assert (cursor["task"], cursor["step"], cursor["ended"]) == (1, 16, False)
    with counted(Gdumb, "_fit_epoch") as calls:
        found = finished(tmp_path / "killed", *command, resumed=16)
    assert [(task, epoch) for _, task, epoch in calls] == [(t, e) for t in range(1, 5) for e in range(4)]
    assert_same(found, expected)


def test_a_fitting_that_is_over_is_not_repeated(tmp_path):
    """Cut off in the evaluation of the second task, the third after that of the untrained network."""
    command = [*words("adab2n"), *SMALL]
    expected = finished(tmp_path / "straight", *command)
    with killed_in(utils.run.training, "evaluate", 3):
        killed(tmp_path / "killed", *command)
    cursor = newest_state(tmp_path / "killed")["cursor"]
    assert (cursor["task"], cursor["step"], cursor["ended"]) == (1, 16, True)
    with counted(Gdumb, "_fit_epoch") as calls:
        found = finished(tmp_path / "killed", *command, resumed=16)
    assert [(task, epoch) for _, task, epoch in calls] == [(t, e) for t in range(2, 5) for e in range(4)]
    assert_same(found, expected)
