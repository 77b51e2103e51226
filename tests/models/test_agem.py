"""A-GEM: the projection by hand, and whole steps against gradients of a copy of the network."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from models import agem
from tests.helpers import assert_close, build_run, make_spec, make_stream, record_steps, run_config, sample_numbers
from utils.errors import UsageError
from utils.run.build import check_together
from utils.step import StepIndex

LR, LAMBDA = 0.25, 0.7
INDEX = StepIndex(task=1, step=6)


@pytest.mark.parametrize(
    ("gradients", "reference", "expected"),
    [
        ([[1.0, 2.0]], [[3.0, 1.0]], [[1.0, 2.0]]),  # agree
        ([[1.0, 2.0]], [[-2.0, 1.0]], [[1.0, 2.0]]),  # orthogonal
        ([[1.0, 2.0]], [[1.0, -3.0]], [[1.5, 0.5]]),  # g.r = -5, r.r = 10: g + r / 2, orthogonal to r
        ([[-4.0, 0.0]], [[2.0, 0.0]], [[0.0, 0.0]]),
        ([[1.0, -2.0], [3.0]], [[0.0, 0.0], [0.0]], [[1.0, -2.0], [3.0]]),  # a zero reference changes nothing
        # All parts are one vector: g.r = -1, r.r = 3. By itself the first part agrees with the reference.
        ([[1.0, 0.0], [2.0]], [[1.0, 1.0], [-1.0]], [[4 / 3, 1 / 3], [5 / 3]]),
    ],
)
def test_projection_by_hand(gradients, reference, expected):
    vectors = ([torch.tensor(part, dtype=torch.float64) for part in parts] for parts in (gradients, reference))
    for part, values in zip(agem.project(*vectors), expected, strict=True):
        assert_close(part, values, atol=1e-15)


def flat(batch) -> torch.Tensor:
    return batch.images.flatten(1).double() / 255


def vector_of(net) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def gradient(net, loss) -> torch.Tensor:
    """Return one vector over all parameters, psi included."""
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(net.parameters()), **options)])


def in_second_task(norm: str):
    """Return a method with first weights, samples of both tasks in the buffer, and statistics and psi that moved."""
    stream = make_stream(make_spec(image_shape=(1, 2, 2), mean=(0.0,), std=(1.0,)), seed=1)
    options = {"lambd": LAMBDA, "kappa": 0.6} if norm == "adab2n" else {}
    config = run_config("agem_r", norm, hidden=5, dtype="float64", lr=LR, minibatch_size=8, **options)
    _, method = build_run(config, stream)
    method.net.train()
    step = 0
    for task in (0, 1):
        method.grow()
        for batch in stream.batches(task, 0, 0):
            method.net(flat(batch))
            method.remember(batch, {}, StepIndex(task, step))
            step += 1
    if norm == "adab2n":
        with torch.no_grad():
            for psi, values in zip(method.net.norms.psi, ([0.3, -0.5], [-0.8, 0.4]), strict=True):
                psi.copy_(torch.tensor(values))
    return method


def buffered_batch(method, *, disagrees: bool):
    """Return what the buffer holds, with its labels or with those of the other task."""
    batch = method.buffer.all_samples()
    labels = (batch.labels_host + 2) % 4
    return replace(batch, labels=torch.from_numpy(labels), labels_host=labels) if disagrees else batch


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
@pytest.mark.parametrize("disagree", [True, False])
def test_a_whole_step(norm, disagree):
    method = in_second_task(norm)
    batch = buffered_batch(method, disagrees=disagree)
    twin = deepcopy(method.net)
    step = method.step(batch, INDEX)
    replay = step.batches["replay"]
    assert (len(batch), len(replay), set(replay.tasks.tolist())) == (12, 8, {0, 1})

    current, replayed = (twin.output(flat(part), part.tasks, penalized=norm == "adab2n") for part in (batch, replay))
    penalties = [output.norms.penalty for output in (current, replayed) if output.norms.penalty is not None]
    loss = F.cross_entropy(current.logits, batch.labels) + LAMBDA * sum(penalties)
    g, r = gradient(twin, loss), gradient(twin, F.cross_entropy(replayed.logits, replay.labels))
    assert (g @ r < 0) == disagree
    expected = g - (g @ r) / (r @ r) * r if disagree else g
    assert_close(step.loss.detach(), loss.detach())
    assert_close(vector_of(method.net), vector_of(twin) - LR * expected)
    if disagree:
        assert (expected - g).abs().max() > 1e-3
    if norm == "adab2n":
        assert min(penalties) > 0
    for mine, theirs in zip(method.net.buffers(), twin.buffers(), strict=True):
        assert_close(mine, theirs)


def replayed_tasks(step) -> tuple[int, list[int]]:
    replay = step.batches.get("replay")
    return step.index.task, [] if replay is None else sorted(replay.tasks.tolist())


@pytest.mark.parametrize("setting", ["class", "domain"])
def test_agem_stores_samples_of_a_task_at_its_end(setting, monkeypatch, capsys):
    """Ten slots for three tasks are three for each; the second task has only two samples."""
    monkeypatch.setattr(agem, "CHUNK", 16)
    stream = make_stream(make_spec(setting, n_tasks=3, n_classes=6, train_sizes=(12, 2, 40)))
    chosen = []
    for seed in (0, 0, 1):
        steps, method, _ = record_steps(run_config("agem", buffer_size=10, seed=seed), stream, replayed_tasks)
        assert steps[:4] == [(0, [])] * 3 + [(1, [0, 0, 0])]
        assert all(len(tasks) == 4 and set(tasks) == {0, 1} for task, tasks in steps[4:])
        stored = method.buffer.all_samples()
        assert stored.tasks.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
        chosen.append(sample_numbers(stored.images).tolist())
        assert [number >= 12 for number in chosen[-1]] == [task > 0 for task in stored.tasks]
        assert len(set(chosen[-1])) == 8
    assert chosen[0] == chosen[1] != chosen[2]
    assert capsys.readouterr().err == ""


def test_a_buffer_smaller_than_the_tasks_is_refused():
    with pytest.raises(UsageError, match="--buffer_size 2"):
        check_together(run_config("agem", buffer_size=2), make_spec(n_tasks=3, n_classes=6))
