"""Losses and draws of the replay methods against values worked out by hand.

Logits are logarithms of whole numbers, so that softmax probabilities are simple fractions.
"""

from math import log
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from models.er_ace import masked_classes
from tests.helpers import CPU, build_run, make_output, make_samples, make_spec, make_stream, run_config, sample_numbers
from utils.config.registry import MODELS
from utils.step import Batch, StepIndex, total

FIRST, SECOND = StepIndex(task=0, step=3), StepIndex(task=1, step=9)


def log_of(*rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log().requires_grad_()


def bare(model: str, **config):
    """Return a method without network, data and buffer: enough for its loss."""
    augment = SimpleNamespace(scale=torch.ones(1, device=CPU))
    return MODELS.get(model).build(None, SimpleNamespace(**config), make_spec(n_classes=4), augment, None)


def loss_of(method, index: StepIndex, **named: tuple[torch.Tensor, Batch]) -> torch.Tensor:
    """Return the loss of batches given by name as (logits, batch)."""
    batches = {name: batch for name, (_, batch) in named.items()}
    outputs = {name: make_output(logits) for name, (logits, _) in named.items()}
    return total(method.loss(batches, outputs, index).values())


STORED = torch.tensor([[0.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
NOW = torch.tensor([[1.0, 1.0, 4.0, 3.0], [1.0, -2.0, 1.0, 1.0]], dtype=torch.float64)
# Squared distances 1, 0, 4, 0, 0, 9, 0, 0: their mean is 14 / 8.
LOGITS = (NOW, make_samples([0, 3], logits=STORED))
CURRENT_LOSS = -(log(4 / 10) + log(5 / 8)) / 2
REPLAYED = (log_of([1, 1, 1, 2]), make_samples([2]))


@pytest.mark.parametrize(
    ("model", "draws", "expected"),
    [
        ("sgd", {}, CURRENT_LOSS),
        ("er", {}, CURRENT_LOSS),
        ("er", {"replay": REPLAYED}, -(log(4 / 10) + log(5 / 8) + log(1 / 5)) / 3),  # all samples alike
        ("er_ace", {}, CURRENT_LOSS),  # nothing is masked in the first task
        ("der", {}, CURRENT_LOSS),
        ("der", {"logits": LOGITS}, CURRENT_LOSS + 0.2 * 14 / 8),
        ("derpp", {}, CURRENT_LOSS),
        ("derpp", {"logits": LOGITS, "labels": REPLAYED}, CURRENT_LOSS + 0.2 * 14 / 8 - 0.5 * log(1 / 5)),
    ],
)
def test_loss_by_hand(model, draws, expected):
    current = (log_of([1, 2, 3, 4], [5, 1, 1, 1]), make_samples([3, 0]))
    loss = loss_of(bare(model, alpha=0.2, beta=0.5), FIRST, current=current, **draws)
    assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_logits_of_classes_unseen_when_stored_do_not_count():
    """With `--classifier seen`: squared distances 1, 0, 0, 9 of the first two classes; the others have no gradient."""
    stored = STORED.index_fill(1, torch.tensor([2, 3]), torch.finfo(STORED.dtype).min)
    current, now = (log_of([1, 2, 3, 4], [5, 1, 1, 1]), make_samples([3, 0])), NOW.clone().requires_grad_()
    draw = (now, make_samples([0, 3], logits=stored))
    loss = loss_of(bare("der", alpha=0.2, classifier="seen"), FIRST, current=current, logits=draw)
    assert loss.item() == pytest.approx(CURRENT_LOSS + 0.2 * 10 / 4, abs=1e-12)
    loss.backward()
    assert now.grad.tolist() == [[0.1, 0, 0, 0], [0, pytest.approx(-0.3), 0, 0]]


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
def test_classes_of_er_ace_that_are_not_masked(present, highest_seen, is_open):
    mask = masked_classes(torch.tensor(present), torch.tensor(highest_seen), 6)
    assert (mask.dtype, mask.shape) == (torch.bool, (6,))
    assert (~mask).nonzero().flatten().tolist() == is_open


def test_er_ace_masks_from_the_second_task_on():
    """Classes 0 and 1 are closed to the current batch of class 2; the replayed batch competes with all."""
    logits, replayed = log_of([1, 2, 3, 4], [7, 7, 1, 1]), log_of([1, 2, 3, 4])
    current, replay = (logits, make_samples([2, 2])), (replayed, make_samples([0]))
    loss = loss_of(bare("er_ace"), SECOND, current=current, replay=replay)
    assert loss.item() == pytest.approx(-(log(3 / 7) + log(1 / 2)) / 2 - log(1 / 10), abs=1e-12)
    loss.backward()
    expected = [[0, 0, (3 / 7 - 1) / 2, 4 / 7 / 2], [0, 0, -1 / 4, 1 / 4]]
    assert logits.grad.flatten().tolist() == pytest.approx(np.ravel(expected).tolist(), abs=1e-12)
    assert replayed.grad.flatten().tolist() == pytest.approx([-0.9, 0.2, 0.3, 0.4], abs=1e-12)


@pytest.mark.parametrize("restored", [False, True])
def test_er_ace_remembers_the_highest_class_of_earlier_tasks(restored):
    """Class 2 was seen in the first task, so class 1 is closed and class 2 is open."""
    method = bare("er_ace")
    loss_of(method, FIRST, current=(log_of([1, 2, 3, 4]), make_samples([2])))
    if restored:
        saved, method = method.state_dict(), bare("er_ace")
        method.load_state_dict(saved)
    loss = loss_of(method, SECOND, current=(log_of([1, 2, 3, 4]), make_samples([0])))
    assert loss.item() == pytest.approx(-log(1 / 8), abs=1e-12)


# --- draws and the buffer ------------------------------------------------------------------------------------------


def outputs_for(batch: Batch) -> dict:
    """Return logits that say which samples they belong to."""
    return {"current": make_output(torch.from_numpy(sample_numbers(batch.images))[:, None] + torch.arange(4) / 10)}


@pytest.mark.parametrize(
    ("model", "backbone", "draws"),
    [  # of the first step, of the second, and of a step of the second task
        ("sgd", "mlp", [[], [], []]),
        ("er", "mlp", [[], ["replay"], ["replay"]]),
        ("er_ace", "mlp", [[], [], ["replay"]]),
        ("der", "mlp", [[], ["logits"], ["logits"]]),
        ("derpp", "mlp", [[], ["logits", "labels"], ["logits", "labels"]]),
        ("er_ace_lider", "resnet18", [[], ["lip_mean", "lip_target"], ["replay", "lip_mean", "lip_target"]]),
    ],
)
def test_draws_of_a_step(model, backbone, draws):
    """LiDER's own draws are no replay."""
    stream = make_stream(make_spec())
    _, method = build_run(run_config(model, backbone=backbone), stream)
    assert (method.buffer is None) == (model == "sgd")
    for step, (task, names) in enumerate(zip((0, 0, 1), draws, strict=True)):
        batch, index = next(stream.in_order(task, 4)), StepIndex(task, step)
        batches = method.batches(batch, index)
        assert list(batches) == ["current", *names]
        assert method.is_replay_step(batches) == (not {"replay", "logits"}.isdisjoint(names))
        method.remember(batch, outputs_for(batch), index)


def filled_derpp():
    """Return DER++ whose buffer holds forty numbered samples of one task, and these samples."""
    stream = make_stream(make_spec(train_sizes=(40, 10), std=(1 / 255,) * 3))
    _, method = build_run(run_config("derpp", buffer_size=40, minibatch_size=5), stream)
    batch = stream.task_data(0)
    method.remember(batch, outputs_for(batch), StepIndex(0, 0))
    return method, batch


def test_derpp_replays_the_logits_and_tasks_that_were_stored_with_the_images():
    method, batch = filled_derpp()
    drawn = method.batches(batch, StepIndex(1, 4))["logits"]
    numbers = sample_numbers(drawn.inputs.round())
    assert torch.equal(drawn.logits, torch.from_numpy(numbers)[:, None] + torch.arange(4) / 10)
    assert drawn.tasks.tolist() == drawn.tasks_host.tolist() == [0] * 5
