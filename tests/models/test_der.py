"""DER: its loss by hand, what it stores, and runs that are cut off."""

from copy import deepcopy
from math import log
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from models.der import Der
from tests.helpers import build_run, make_spec, make_stream, run_config, sample_numbers
from utils.step import Batch, Normalization, Output, StepIndex, total

PLACE = StepIndex(task=0, step=3)


def bare(**config) -> Der:
    return Der(None, SimpleNamespace(**config), make_spec(n_classes=4), SimpleNamespace(scale=torch.ones(1)), None)


def samples(labels, logits=None) -> Batch:
    labels = np.array(labels)
    images, tasks = torch.zeros(len(labels), 1), np.zeros_like(labels)
    return Batch(images, torch.from_numpy(labels), torch.from_numpy(tasks), labels, tasks, images, logits)


def said(*rows) -> Output:
    logits = torch.tensor(rows, dtype=torch.float64)
    return Output(logits, logits, (), Normalization())


def logs(*rows) -> Output:
    return said(*np.log(np.array(rows, dtype=float)).tolist())


def test_loss_by_hand():
    """The squared distances are 1, 0, 4, 0, 0, 9, 0, 0: their mean is 14 / 8. Replayed labels do not count."""
    stored = torch.tensor([[0.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    losses = bare(alpha=0.2).loss(
        {"current": samples([3, 0]), "logits": samples([0, 3], stored)},
        {"current": logs([1, 2, 3, 4], [5, 1, 1, 1]), "logits": said([1, 1, 4, 3], [1, -2, 1, 1])},
        PLACE,
    )
    assert total(losses.values()).item() == pytest.approx(-(log(4 / 10) + log(5 / 8)) / 2 + 0.2 * 14 / 8, abs=1e-12)


def test_without_replay_the_loss_is_plain_cross_entropy():
    losses = bare(alpha=0.2).loss({"current": samples([3])}, {"current": logs([1, 2, 3, 4])}, PLACE)
    assert total(losses.values()).item() == pytest.approx(-log(4 / 10), abs=1e-12)


def test_there_is_one_draw_from_the_second_batch_on():
    stream = make_stream(make_spec())
    _, method = build_run(run_config("der"), stream)
    for step, batch in enumerate(stream.batches(0, 0, 0)):
        done = method.step(batch, StepIndex(0, step))
        assert {name: len(drawn) for name, drawn in done.batches.items()} == (
            {"current": len(batch)} | ({"logits": 4} if step else {})
        )


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
def test_stored_logits_are_those_of_the_observed_batch_before_the_step(norm):
    """In training, of the current samples alone with `bn` and together with the replayed ones with `adab2n`."""
    stream = make_stream(make_spec(train_sizes=(12, 10)))
    net, method = build_run(run_config("der", norm, dtype="float64", lr=0.5), stream)
    method.grow()
    for step, batch in enumerate(stream.batches(0, 0, 0)):
        before = deepcopy(net)
        done = method.step(batch, StepIndex(0, step))
        seen = list(done.batches.values()) if norm == "adab2n" else [done.batches["current"]]
        inputs = torch.cat([part.images for part in seen]).double() / 255
        tasks = torch.cat([part.tasks for part in seen])
        expected = before.output(inputs, tasks).logits[: len(batch)].detach()
        held = sample_numbers(method.buffer.images)
        assert len(method.buffer) == 4 * (step + 1)
        for number, logits in zip(sample_numbers(batch.images), expected, strict=True):
            (slot,) = np.flatnonzero(held[: len(method.buffer)] == number)
            torch.testing.assert_close(method.buffer.logits[slot], logits, rtol=0, atol=1e-12)
