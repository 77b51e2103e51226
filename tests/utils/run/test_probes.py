"""Probes: what they record is what a two-layer network gives by plain formulas, and they change nothing."""

import copy

import numpy as np
import pytest
import torch
from conftest import runner
from torch.nn import functional as F

from tests.helpers import (
    StepRecorder,
    assert_close,
    build_run,
    make_spec,
    make_stream,
    run_config,
    two_layers_by_hand,
)  # fmt: skip
from tests.models.cut_off import Killed, Steps, watched_by
from tests.outcomes import TIMES
from utils.config.registry import OBSERVERS
from utils.errors import UsageError
from utils.run.eval_statistics import norm_layers
from utils.run.probes import Stability, Statistics, TaskWeights, read_recording
from utils.run.training import Training
from utils.step import CURRENT, StepIndex

SPEC = make_spec(n_tasks=3, n_classes=6, image_shape=(3, 4, 4))
GROUPS = 4


def second_task(norm: str, model: str = "er", **changes):
    """A method that has trained a task and begun another, the stream's next batch, and its place."""
    changes |= {"groups": GROUPS} if norm in ("gn", "cn") else {}
    config = run_config(model, norm, dtype="float64", hidden=8, **changes)
    stream = make_stream(SPEC)
    net, method = build_run(config, stream)
    net.train()
    method.grow()
    for number, batch in enumerate(stream.batches(0, 0, 0)):
        method.step(batch, StepIndex(0, number))
    method.grow()
    with torch.no_grad():  # scales and shifts that matter
        for _, layer in norm_layers(net):
            for parameter in layer.parameters():
                parameter.add_(torch.linspace(-0.3, 0.4, parameter.numel()).view_as(parameter))
    return method, next(stream.batches(1, 0, 0)), StepIndex(1, 3)


@pytest.mark.parametrize("norm", ["bn", "cn", "gn", "adab2n"])
def test_stability_and_statistics_of_a_step(norm):
    method, batch, place = second_task(norm, **({"lambd": 0.0} if norm == "adab2n" else {}))
    before = copy.deepcopy(method.net)
    probes = [Stability(method)] + ([] if norm == "gn" else [Statistics(method)])
    step = method.step(batch, place)
    for probe in probes:
        probe.on_step(step)
    inputs = torch.cat([part.inputs for part in step.batches.values()])
    labels = torch.cat([part.labels for part in step.batches.values()])
    tasks = torch.cat([part.tasks for part in step.batches.values()])
    by_layer, hats = None, []
    if norm == "adab2n":
        counts = torch.stack([(tasks == task).sum() for task in range(2)])
        pseudo = [torch.stack([psi[layer] for psi in before.norms.psi]).exp() + counts for layer in (0, 1)]
        by_layer = [((p / p.sum())[tasks] / counts[tasks]).detach() for p in pseudo]
    logits, used = two_layers_by_hand(before, norm, inputs, by_layer, hats=hats)
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    stability = probes[0].recording()
    assert_close(stability["loss"], [loss.item()], rtol=1e-6)
    dots, lengths, grads = [], [], []
    for number, hat in enumerate(hats):
        dot, length, magnitude = (hat * hat.grad).sum(), hat.norm(), hat.grad.norm()
        assert_close(stability["cosine"][0][number], (dot / length / magnitude).item(), atol=1e-6)
        assert_close(stability["magnitude"][0][number], magnitude.item(), rtol=1e-5)
        dots.append(dot)
        lengths.append(length**2)
        grads.append(magnitude**2)
    whole = sum(dots) / (sum(lengths) * sum(grads)).sqrt()
    assert_close(stability["cosine_of_all"], [whole.item()], atol=1e-6)
    assert_close(stability["magnitude_of_all"], [sum(grads).sqrt().item()], rtol=1e-5)
    if norm == "gn":
        return
    statistics = probes[1].recording()
    for number, (mean, var) in enumerate(used):
        assert_close(statistics["batch_mean"][0][number], mean.norm().item(), rtol=1e-5)
        assert_close(statistics["batch_var"][0][number], var.norm().item(), rtol=1e-5)
    for number, (_, layer) in enumerate(norm_layers(method.net)):
        assert_close(statistics["running_mean"][0][number], layer.running_mean.norm().item(), rtol=1e-6)
        assert_close(statistics["running_var"][0][number], layer.running_var.norm().item(), rtol=1e-6)


def test_separate_forwards_count_together():
    """The similarity over both forwards is that of their representations and gradients, one after the other."""
    method, batch, place = second_task("bn", "er_ace")
    before, probe = copy.deepcopy(method.net), Stability(method)
    step = method.step(batch, place)
    probe.on_step(step)
    assert list(step.batches) == [CURRENT, "replay"]
    loss, seen = 0.0, []
    for name, part in step.batches.items():
        logits, _ = two_layers_by_hand(before, "bn", part.inputs, hats=(hats := []))
        if name == CURRENT:
            closed = torch.ones(SPEC.n_classes, dtype=torch.bool)
            closed[int(part.labels.max()) :] = False
            closed[part.labels] = False
            logits = logits.masked_fill(closed, torch.finfo(torch.float64).min)
        loss = loss + F.cross_entropy(logits, part.labels)
        seen.append(hats[1])
    loss.backward()
    hat, gradient = torch.cat(seen), torch.cat([part.grad for part in seen])
    assert_close(probe.recording()["cosine"][0][1], F.cosine_similarity(hat.flatten(), gradient.flatten(), 0).item(),
                 atol=1e-6)  # fmt: skip


# --- weights ----------------------------------------------------------------------------------------------------------


def recorded(norm: str, model: str = "er", **changes) -> dict[str, np.ndarray]:
    config, stream = run_config(model, norm, dtype="float64", **changes), make_stream(SPEC)
    _, method = build_run(config, stream)
    probe = TaskWeights(method)
    tasks = StepRecorder(lambda step: {name: batch.tasks_host.tolist() for name, batch in step.batches.items()})
    Training(config, stream, method, observers=[probe, tasks]).run()
    return probe.recording() | {"steps": tasks.steps}


@pytest.mark.parametrize("model", ["er", "er_ace"])
def test_weights_of_bn_are_the_shares_of_the_tasks_and_their_running_average(model):
    """The mean over the forward passes of a step, of which every one moves the running statistics."""
    rows, effective = recorded("bn", model), np.zeros(3)
    for number, batches in enumerate(rows["steps"]):
        forwards = [np.concatenate([*batches.values()])] if model == "er" else [*batches.values()]
        shares = [np.bincount(tasks, minlength=3) / len(tasks) for tasks in forwards]
        for share in shares:
            effective = 0.9 * effective + 0.1 * share
        for layer in range(2):
            assert_close(rows["weight"][number][:, layer], np.mean(shares, axis=0), atol=1e-6)
            assert_close(rows["effective"][number][:, layer], effective, atol=1e-6)
    assert rows["step"].tolist() == list(range(9))
    assert rows["task"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert rows["layers"].tolist() == ["norm1", "norm2"]


def test_cumulative_average_gives_every_batch_the_same_weight():
    rows = recorded("cma")
    shares = [
        np.bincount(np.concatenate(list(b.values())), minlength=3) / sum(map(len, b.values())) for b in rows["steps"]
    ]
    assert_close(rows["effective"][-1][:, 1], np.mean(shares, axis=0), atol=1e-6)


def test_weights_of_adab2n_are_its_own():
    """psi stays near 0 with a small learning rate: p_t = (1 + N_t) / (tasks + N)."""
    rows = recorded("adab2n", lr=1e-9, lambd=0.0)
    eta, effective = 0.1**0.7, np.zeros(3)
    for number, batches in enumerate(rows["steps"]):
        tasks = np.concatenate(list(batches.values()))
        begun = number // 3 + 1
        counts = np.bincount(tasks, minlength=3)
        share = (1 + counts[:begun]) / (begun + counts.sum()) * (counts[:begun] > 0)
        share = counts[:begun] / counts.sum() if len(batches) == 1 else share
        share = np.concatenate([share, np.zeros(3 - begun)])
        assert_close(rows["weight"][number][:, 0], share, atol=1e-6)
        effective = (1 - eta) * effective + eta * share
        eta = eta / (eta + 0.9**0.7)
        assert_close(rows["effective"][number][:, 1], effective, atol=1e-6)


def test_balanced_norms_have_other_weights_for_their_running_statistics():
    rows = recorded("bnt")
    tasks = np.concatenate(list(rows["steps"][-1].values()))
    present = np.unique(tasks)
    moved = (rows["effective"][-1][:, 0] - 0.9 * rows["effective"][-2][:, 0]) / 0.1
    assert_close(moved[present], np.full(len(present), 1 / len(present)), atol=1e-5)
    assert_close(rows["weight"][-1][:, 0], np.bincount(tasks, minlength=3) / len(tasks), atol=1e-6)


# --- commands ---------------------------------------------------------------------------------------------------------

WORDS = ["--model", "derpp", "--norm", "adab2n", "--dataset", "seq-digits", "--num_filters", "4", "--batch_size", "40"]
WORDS += ["--num_threads", "1", "--save_model"]
ALL = ["--probe", "stability,statistics,weights"]


def without_times(record: dict) -> dict:
    return {name: value for name, value in record.items() if name not in (*TIMES, "config", "recordings")}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return runner(tmp_path_factory.mktemp("plain"))(*WORDS)


@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    return runner(tmp_path_factory.mktemp("probed"))(*WORDS, *ALL)


def test_a_run_with_all_probes_is_the_same_run(plain, probed):
    assert without_times(probed.record) == without_times(plain.record)
    assert (probed.folder / "model.safetensors").read_bytes() == (plain.folder / "model.safetensors").read_bytes()
    assert probed.record["recordings"].keys() == set(OBSERVERS.names())
    assert "recordings" not in plain.record
    steps = plain.record["steps"]
    assert all(len(read_recording(probed.folder, name)["step"]) == steps for name in OBSERVERS.names())


def test_a_run_that_is_cut_off_has_the_same_recordings(probed, tmp_path):
    cut = [*WORDS, *ALL, "--checkpoint_every", "3", "--log_every", "2"]
    with watched_by(Steps(last=20)), pytest.raises(Killed):
        runner(tmp_path)(*cut)
    again = runner(tmp_path)(*cut)
    for name in OBSERVERS.names():
        resumed, whole = read_recording(again.folder, name), read_recording(probed.folder, name)
        assert resumed.keys() == whole.keys()
        assert all(np.array_equal(resumed[key], whole[key]) for key in resumed), name


def test_missing_or_damaged_recordings_ask_for_a_rerun(tmp_path):
    run, words = runner(tmp_path), [*WORDS, "--probe", "weights"]
    assert run(*WORDS).code == 0
    assert run(*words).code == 2
    folder = run(*words, "--rerun").folder
    assert "not trained again" in run(*words).stderr
    (folder / "recordings" / "weights.npz").write_bytes(b"damaged")
    assert run(*words).code == 2


@pytest.mark.parametrize(
    ("norm", "model", "probe", "reason"),
    [
        ("gn", "er", Statistics, "needs a norm"),
        ("gn", "er", TaskWeights, "needs a norm"),
        ("tbbn", "er", Statistics, "tbbn"),
        ("tbbn", "er", TaskWeights, "tbbn"),
        ("bn", "agem", Stability, "gradient per step"),
    ],
)
def test_what_cannot_be_recorded_is_refused(norm, model, probe, reason):
    config, stream = run_config(model, norm), make_stream(SPEC)
    _, method = build_run(config, stream)
    with pytest.raises(UsageError, match=reason):
        probe(method)


def test_batches_left_out_are_not_recorded_and_leave_nothing_behind():
    """The third batch of every task is a single image."""
    spec = make_spec(n_tasks=2, n_classes=4, train_sizes=(9, 9))
    config, stream = run_config("sgd", "bn"), make_stream(spec)
    _, method = build_run(config, stream)
    probes = [Stability(method), Statistics(method), TaskWeights(method)]
    Training(config, stream, method, observers=probes).run()
    assert method.runner.skipped_batches == 2
    for probe in probes:
        assert probe.recording()["step"].tolist() == [0, 1, 3, 4]
