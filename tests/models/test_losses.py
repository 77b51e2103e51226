"""Losses and draws of the replay methods against values worked out by hand.

Logits are logarithms of whole numbers, so that softmax probabilities are simple fractions.
"""

from math import log
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from models.derpp import Derpp
from models.er import Er
from models.er_ace import ErAce, masked_classes
from models.sgd import Sgd
from tests.helpers import CPU, build_run, make_spec, make_stream, run_config, sample_numbers
from utils.step import Batch, Normalization, Output, StepIndex, total

FIRST, SECOND = StepIndex(task=0, step=3), StepIndex(task=1, step=9)


def log_of(*rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log().requires_grad_()


def samples(labels, logits=None) -> Batch:
    labels = np.array(labels)
    images, tasks = torch.zeros(len(labels), 1), np.zeros(len(labels), dtype=int)
    return Batch(images, torch.from_numpy(labels), torch.from_numpy(tasks), labels, tasks, images, logits)


def said(logits: torch.Tensor) -> Output:
    return Output(logits, logits, (), Normalization())


def loss_of(method, index: StepIndex, **named) -> torch.Tensor:
    """The loss of batches given by name as (logits, batch)."""
    batches = {name: batch for name, (_, batch) in named.items()}
    outputs = {name: said(logits) for name, (logits, _) in named.items()}
    return total(method.loss(batches, outputs, index).values())


def bare(kind, **config):
    """A method without network, data and buffer: enough for its loss."""
    augment = SimpleNamespace(scale=torch.ones(1, device=CPU))
    return kind(None, SimpleNamespace(**config), make_spec(n_classes=4), augment, None)


def test_sgd():
    loss = loss_of(bare(Sgd), FIRST, current=(log_of([1, 2, 3, 4], [5, 1, 1, 1]), samples([3, 0])))
    assert loss.item() == pytest.approx(-(log(4 / 10) + log(5 / 8)) / 2, abs=1e-12)


def test_er_averages_over_current_and_replayed_samples_alike():
    loss = loss_of(
        bare(Er),
        SECOND,
        current=(log_of([1, 2, 3, 4], [5, 1, 1, 1]), samples([3, 0])),
        replay=(log_of([1, 1, 1, 2]), samples([2])),
    )
    assert loss.item() == pytest.approx(-(log(4 / 10) + log(5 / 8) + log(1 / 5)) / 3, abs=1e-12)


# --- ER-ACE ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("present", "highest_seen", "is_open"),
    [
        ([0, 1], 1, [0, 1, 2, 3, 4, 5]),
        ([2], 2, [2, 3, 4, 5]),
        ([2], 3, [2, 3, 4, 5]),
        ([2, 3], 3, [2, 3, 4, 5]),
        ([4], 4, [4, 5]),
        ([4], 5, [4]),
        ([5], 5, [5]),
        ([4, 5, 4], 5, [4, 5]),
        ([0, 3], 5, [0, 3]),
    ],
)
def test_open_classes(present, highest_seen, is_open):
    found = ~masked_classes(torch.tensor(present), torch.tensor(highest_seen), 6)
    assert (found.dtype, found.shape) == (torch.bool, (6,))
    assert found.nonzero().flatten().tolist() == is_open


def test_er_ace_does_not_mask_in_the_first_task():
    loss = loss_of(bare(ErAce), FIRST, current=(log_of([1, 2, 3, 4]), samples([1])))
    assert loss.item() == pytest.approx(-log(2 / 10), abs=1e-12)


def test_er_ace_masks_from_the_second_task_on():
    """Classes 0 and 1 are closed to the current batch of class 2; the replayed batch competes with all."""
    logits = log_of([1, 2, 3, 4], [7, 7, 1, 1])
    replayed = log_of([1, 2, 3, 4])
    loss = loss_of(bare(ErAce), SECOND, current=(logits, samples([2, 2])), replay=(replayed, samples([0])))
    assert loss.item() == pytest.approx(-(log(3 / 7) + log(1 / 2)) / 2 - log(1 / 10), abs=1e-12)
    loss.backward()
    expected = [[0, 0, (3 / 7 - 1) / 2, 4 / 7 / 2], [0, 0, -1 / 4, 1 / 4]]
    assert logits.grad.flatten().tolist() == pytest.approx(np.ravel(expected).tolist(), abs=1e-12)
    assert replayed.grad.flatten().tolist() == pytest.approx([-0.9, 0.2, 0.3, 0.4], abs=1e-12)


def test_er_ace_opens_only_present_classes_once_the_last_was_seen():
    method = bare(ErAce)
    loss_of(method, SECOND, current=(log_of([1, 2, 3, 4]), samples([3])))
    loss = loss_of(method, SECOND, current=(log_of([1, 2, 3, 4], [2, 5, 1, 9]), samples([2, 1])))
    assert loss.item() == pytest.approx(-(log(3 / 5) + log(5 / 6)) / 2, abs=1e-12)
    alone = loss_of(method, SECOND, current=(log_of([1, 2, 3, 4]), samples([2])))
    assert alone.item() == pytest.approx(0.0, abs=1e-12)


def test_er_ace_remembers_the_highest_class_of_earlier_tasks():
    """Class 2 was seen in the first task, so class 1 is closed and class 2 is open."""
    method = bare(ErAce)
    loss_of(method, FIRST, current=(log_of([1, 2, 3, 4]), samples([2])))
    for restored in (False, True):
        if restored:
            saved = method.state_dict()
            method = bare(ErAce)
            method.load_state_dict(saved)
        loss = loss_of(method, SECOND, current=(log_of([1, 2, 3, 4]), samples([0])))
        assert loss.item() == pytest.approx(-log(1 / 8), abs=1e-12)


def endless_batches(stream, task: int):
    while True:
        yield from stream.in_order(task, 5)


def outputs_for(batch: Batch) -> dict[str, Output]:
    """Logits that say which samples they belong to."""
    return {"current": said(torch.from_numpy(sample_numbers(batch.images))[:, None] + torch.arange(4) / 10)}


def test_er_ace_replays_from_the_second_task_on():
    stream = make_stream(make_spec())
    _, method = build_run(run_config("er_ace"), stream)
    for task, names in ((0, ["current"]), (1, ["current", "replay"])):
        for step, batch in zip(range(10 * task, 10 * task + 3), endless_batches(stream, task), strict=False):
            index = StepIndex(task, step)
            assert list(method.batches(batch, index)) == names
            method.remember(batch, outputs_for(batch), index)


@pytest.mark.parametrize(("model", "names"), [("er", ["replay"]), ("derpp", ["logits", "labels"])])
def test_er_and_derpp_replay_from_the_second_batch_on(model, names):
    stream = make_stream(make_spec())
    _, method = build_run(run_config(model), stream)
    for step, batch in zip(range(3), endless_batches(stream, 0), strict=False):
        index = StepIndex(0, step)
        batches = method.batches(batch, index)
        assert list(batches) == (["current"] if step == 0 else ["current", *names])
        assert method.is_replay_step(batches) == (step > 0)
        method.remember(batch, outputs_for(batch), index)


def test_sgd_neither_replays_nor_remembers():
    stream = make_stream(make_spec())
    _, method = build_run(run_config("sgd"), stream)
    for step, batch in zip(range(3), endless_batches(stream, 0), strict=False):
        batches = method.batches(batch, StepIndex(0, step))
        assert list(batches) == ["current"]
        assert not method.is_replay_step(batches)
        method.remember(batch, outputs_for(batch), StepIndex(0, step))
    assert method.buffer is None


# --- DER++ -------------------------------------------------------------------------------------------------------


def test_derpp_by_hand():
    """The squared distances are 1, 0, 4, 0, 0, 9, 0, 0: their mean is 14 / 8."""
    stored = torch.tensor([[0.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    now = torch.tensor([[1.0, 1.0, 4.0, 3.0], [1.0, -2.0, 1.0, 1.0]], dtype=torch.float64)
    loss = loss_of(
        bare(Derpp, alpha=0.2, beta=0.5),
        FIRST,
        current=(log_of([1, 2, 3, 4], [5, 1, 1, 1]), samples([3, 0])),
        logits=(now, samples([0, 0], stored)),
        labels=(log_of([1, 1, 1, 2]), samples([2], stored[:1])),
    )
    expected = -(log(4 / 10) + log(5 / 8)) / 2 + 0.2 * 14 / 8 - 0.5 * log(1 / 5)
    assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_derpp_without_replay_is_plain_cross_entropy():
    loss = loss_of(bare(Derpp, alpha=0.2, beta=0.5), FIRST, current=(log_of([1, 2, 3, 4]), samples([3])))
    assert loss.item() == pytest.approx(-log(4 / 10), abs=1e-12)


def filled_derpp():
    """DER++ whose buffer holds forty numbered samples of one task."""
    stream = make_stream(make_spec(train_sizes=(40, 10), std=(1 / 255,) * 3))
    _, method = build_run(run_config("derpp", buffer_size=40, minibatch_size=5), stream)
    batch = stream.task_data(0)
    method.remember(batch, outputs_for(batch), StepIndex(0, 0))
    return method, batch


def test_the_two_draws_of_derpp_are_independent():
    method, batch = filled_derpp()
    pairs = []
    for step in range(400):
        draws = method.batches(batch, StepIndex(0, step))
        first, second = (sample_numbers(draws[name].inputs.round()) for name in ("logits", "labels"))
        pairs.append((first[0], second[0]))
        assert sorted(first) != sorted(second)
    shared = sum(first == second for first, second in pairs)
    assert shared == pytest.approx(400 / 40, abs=3.3 * (400 / 40) ** 0.5)


def test_draws_are_addressed_by_the_step():
    method, batch = filled_derpp()
    first, again, other = (method.batches(batch, StepIndex(0, step))["logits"].inputs for step in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_derpp_replays_the_logits_and_tasks_that_were_stored_with_the_images():
    method, batch = filled_derpp()
    drawn = method.batches(batch, StepIndex(1, 4))["logits"]
    numbers = sample_numbers(drawn.inputs.round())
    assert torch.equal(drawn.logits, torch.from_numpy(numbers)[:, None] + torch.arange(4) / 10)
    assert drawn.tasks.tolist() == drawn.tasks_host.tolist() == [0] * 5


def test_only_derpp_stores_logits():
    stream = make_stream(make_spec())
    assert build_run(run_config("derpp"), stream)[1].buffer.logits is not None
    assert build_run(run_config("er_ace"), stream)[1].buffer.logits is None
