"""`--balance_groups`: whose contributions AdaB2N balances, by hand and in whole runs that are cut off or evaluated."""

import numpy as np
import pytest
import torch
from conftest import call

import utils.run.saved_model
from models.method import Method
from tests.helpers import assert_close, build_run, forward, make_samples, make_spec, make_stream, run_config
from tests.models.cut_off import (
    SMALL,
    assert_a_cut_off_run_ends_the_same,
    assert_resumes_from_every_checkpoint,
    with_checkpoints,
)
from utils.data.stream import TensorStream
from utils.run.training import Training
from utils.step import CURRENT, Batch, Output, forwards_of

GROUPS = ["task", "class", "source", "none"]
SPEC = make_spec()  # two tasks of two classes


def built(model: str = "er", *, stream: TensorStream | None = None, **options) -> Method:
    config = run_config(model, "adab2n", dtype="float64", **options)
    return build_run(config, stream or make_stream(SPEC))[1]


def batch_of(labels: list[int], tasks: list[int]) -> Batch:
    draw = torch.Generator().manual_seed(len(labels))
    inputs = torch.randn(len(labels), *SPEC.image_shape, dtype=torch.float64, generator=draw) + 1
    return make_samples(labels, tasks, inputs=inputs)


# A step of the second task: a draw beside the stream's batch, or, as with iCaRL, exemplars in it.
DRAWN = {CURRENT: batch_of([2, 3, 3], [1, 1, 1]), "replay": batch_of([0, 2], [0, 1])}
MIXED = {CURRENT: batch_of([2, 0, 3, 1, 0], [1, 0, 1, 0, 0])}
BATCHES = {"drawn": DRAWN, "mixed": MIXED}


def in_second_task(groups: str, phi: list[float], **options) -> Method:
    method = built(balance_groups=groups, **options)
    for _ in range(2):
        method.grow()
    with torch.no_grad():
        for psi, value in zip(method.net.norms.psi, phi, strict=True):
            psi.fill_(np.log(value))
    return method


def replay_forward(method: Method, batches: dict[str, Batch]) -> dict[str, Output]:
    return forward(method, batches, 1, replayed=True, penalized=True)


def first_activations(method: Method, batches: dict[str, Batch]) -> np.ndarray:
    inputs = torch.cat([batch.inputs for batch in batches.values()])
    return method.net.linear1(inputs.flatten(1)).detach().numpy()


BY_HAND = {  # balance_groups, batches: the samples' groups, phi, the numerators of Eq. 14; phi and counts add up
    ("task", "drawn"): ([1, 1, 1, 0, 1], [1, 2], [1 + 1, 2 + 4]),
    ("task", "mixed"): ([1, 0, 1, 0, 0], [1, 2], [1 + 3, 2 + 2]),
    ("class", "drawn"): ([2, 3, 3, 0, 2], [1, 2, 3, 4], [1 + 1, 2 + 0, 3 + 2, 4 + 2]),
    ("class", "mixed"): ([2, 0, 3, 1, 0], [1, 2, 3, 4], [1 + 2, 2 + 1, 3 + 1, 4 + 1]),
    ("source", "drawn"): ([0, 0, 0, 1, 1], [3, 1], [3 + 3, 1 + 2]),
    ("source", "mixed"): ([0, 1, 0, 1, 1], [3, 1], [3 + 2, 1 + 3]),
}


@pytest.mark.parametrize("absent", ["counted", "ignored"])
@pytest.mark.parametrize("variance", ["mixture", "within"])
@pytest.mark.parametrize(("groups", "batches"), BY_HAND)
def test_weights_of_groups_are_those_of_equation_14(groups, batches, variance, absent):
    of_sample, phi, numerators = BY_HAND[groups, batches]
    method = in_second_task(groups, phi, absent_tasks=absent, variance=variance)
    norms = replay_forward(method, BATCHES[batches])[CURRENT].norms
    present = [n for group, n in enumerate(numerators) if group in of_sample]
    p = np.array(numerators) / sum(numerators if absent == "counted" else present)
    assert_close(norms.group_weights.detach(), np.stack([p, p], axis=1))
    a, of_sample = first_activations(method, BATCHES[batches]), np.array(of_sample)
    means = {group: a[of_sample == group].mean(0) for group in set(of_sample)}
    mu = sum(p[group] * mean for group, mean in means.items())
    centers = means if variance == "within" else dict.fromkeys(means, mu)
    sigma2 = sum(p[group] * ((a[of_sample == group] - centers[group]) ** 2).mean(0) for group in means)
    assert_close(norms.means[0].detach(), mu)
    assert_close(norms.variances[0].detach(), sigma2)


@pytest.mark.parametrize(("absent", "expected"), [("counted", [6 / 7, 3 / 6]), ("ignored", [1, 1])])
def test_a_forward_of_its_own_has_one_source(absent, expected):
    """phi is 3 and 1; three samples are current and two replayed."""
    method = in_second_task("source", [3, 1], replay_forward="separate", absent_tasks=absent)
    current, replayed = (output.norms.group_weights.detach()[:, 0] for output in replay_forward(method, DRAWN).values())
    assert_close(current[0], expected[0])
    assert_close(replayed[1], expected[1])


@pytest.mark.parametrize("batches", BATCHES)
def test_none_is_plain_batch_statistics_with_adab2ns_momentum_and_penalty(batches):
    method = in_second_task("none", [], kappa=0.4)
    outputs = replay_forward(method, BATCHES[batches])
    plain = build_run(run_config("er", "bn", dtype="float64", replay_forward="joint"), make_stream(SPEC))[1]
    for name, output in replay_forward(plain, BATCHES[batches]).items():
        assert_close(outputs[name].logits.detach(), output.logits.detach())
    (norms,) = forwards_of(outputs)
    assert norms.group_weights is None
    a = first_activations(method, BATCHES[batches])
    assert_close(norms.means[0].detach(), a.mean(0))
    assert_close(norms.variances[0].detach(), a.var(0))
    eta, penalty = 0.1**0.4, 0.0
    for layer, mean, var in zip((method.net.norm1, method.net.norm2), norms.means, norms.variances, strict=True):
        mean, var = mean.detach(), var.detach()
        assert_close(layer.running_mean, eta * mean)
        assert_close(layer.running_var, 1 - eta + eta * var)
        penalty += ((mean - layer.running_mean) ** 2).mean() + ((var - layer.running_var) ** 2).mean()
        assert_close(layer.eta, eta / (eta + 0.9**0.4))
    assert_close(norms.penalty.detach(), penalty)


PSI = {  # after every task
    ("class", "er"): {"task": [1, 2, 3], "class": [2, 4, 6], "source": [2, 2, 2], "none": [0, 0, 0]},
    ("domain", "er"): {"task": [1, 2, 3], "class": [6, 6, 6], "source": [2, 2, 2], "none": [0, 0, 0]},
    ("class", "joint"): {"task": [1], "class": [6], "source": [2], "none": [0]},
}


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize(("setting", "model"), PSI)
def test_groups_that_come_with_a_task_are_learned(setting, model, groups):
    method = built(model, stream=make_stream(make_spec(setting, n_tasks=3, n_classes=6)), balance_groups=groups)
    for expected in PSI[setting, model][groups]:
        method.grow()
        psi = list(method.net.norms.psi)
        assert [value.tolist() for value in psi] == [[0.0, 0.0]] * expected
        learned = [id(parameter) for group in method.optimizer.param_groups for parameter in group["params"]]
        assert len(set(learned)) == len(learned)
        assert {id(value) for value in psi} <= set(learned)


RUNS = [("derpp", "class"), ("icarl", "class"), ("agem", "domain"), ("gdumb", "domain")]


def training_of(model: str, setting: str, groups: str) -> Training:
    options = {"fitting_epochs": 2} if model == "gdumb" else {"optim_mom": 0.5}
    stream = make_stream(make_spec(setting, train_sizes=(12, 12)))
    config = run_config(model, "adab2n", balance_groups=groups, n_epochs=1, **options)
    return with_checkpoints(Training(config, stream, build_run(config, stream)[1]))


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize(("model", "setting"), RUNS)
def test_every_method_runs_with_every_kind_of_group_and_resumes(model, setting, groups):
    straight, resumed_runs = assert_resumes_from_every_checkpoint(lambda: training_of(model, setting, groups))
    assert len(resumed_runs) >= 4
    learns = model != "gdumb" and groups != "none"  # GDumb's fitting is no replay
    assert any(psi.abs().max() > 0 for psi in straight.method.net.norms.psi) == learns


def test_a_command_that_is_cut_off_ends_the_same_and_its_network_can_be_evaluated(tmp_path, monkeypatch):
    words = ["--model", "derpp", "--norm", "adab2n", "--buffer_size", "50", "--balance_groups", "class"]
    record = assert_a_cut_off_run_ends_the_same(tmp_path, *words, at=(5, 8, 19))["record"]
    assert record["identity"]["balance_groups"] == "class"
    measured, original = [], utils.run.saved_model.accuracies
    monkeypatch.setattr(
        utils.run.saved_model,
        "accuracies",
        lambda method, *more: measured.append((len(method.net.norms.psi), original(method, *more))) or measured[-1][1],
    )
    (path,) = tmp_path.glob("killed/runs/*/model.safetensors")
    assert call(["--eval_only", str(path), "--num_threads", "1"]).code == 0
    last = {setting: result["matrix"][-1] for setting, result in record["results"].items()}
    assert measured == [(10, last)]


def test_another_kind_of_group_contradicts_a_saved_network(run_main):
    saved = run_main("--model", "sgd", "--norm", "adab2n", *SMALL)
    assert "balance_groups" not in saved.record["identity"]  # the name of runs from before there was the option
    refused = call(["--eval_only", str(saved.folder / "model.safetensors"), "--balance_groups", "class"])
    assert refused.code == 2
    assert "--balance_groups" in refused.stderr
