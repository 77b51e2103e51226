"""`--final_statistics` and `--late_evaluations`: values computed by hand, and no other number changes."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean, stdev

import numpy as np
import pytest
import torch
from conftest import runner

from tests import helpers
from tests.helpers import build_run, make_spec, make_stream, run_config, sample_numbers, weights_of
from utils.data.random import generator
from utils.run.evaluation import accuracies
from utils.run.outcomes import drawn_images, final_statistics, is_late, spaced_test_images
from utils.run.signals import Interrupted

SPEC = make_spec(n_tasks=2, n_classes=4, train_sizes=(12, 12), test_sizes=(40, 40))
RUN = ["--model", "er", "--norm", "adab2n", "--dataset", "seq-digits", "--num_filters", "2", "--batch_size", "10"]
BOTH = ["--final_statistics", "--late_evaluations", "3"]


def trained(norm: str, model: str = "er"):
    """(network, method, stream): statistics and affine parameters that show where they are used; a buffer of one image
    of the first task and five of the second."""
    config = run_config(model, norm, dtype="float64", **({"cn_affine": "learned"} if norm == "cn" else {}))
    stream = make_stream(SPEC)
    net, method = build_run(config, stream)
    method.grow()
    helpers.scatter_norms(net)
    if method.buffer is not None:
        for task, count in ((0, 1), (1, 5)):
            method.buffer.add(next(stream.in_order(task, count)), generator(0, "fill", task))
    return net, method, stream


@torch.no_grad()
def accuracies_by_hand(net, method, stream, norm, statistics) -> list[float]:
    percent = []
    for task in range(SPEC.n_tasks):
        [batch] = list(stream.test(task, 100))
        logits, _ = helpers.two_layers_by_hand(net, norm, method.augment.normalize(batch.images), statistics=statistics)
        percent.append(100 * int((logits.argmax(1) == batch.labels).sum()) / len(batch))
    return percent


@pytest.mark.parametrize("norm", ["bn", "cn", "adab2n"])
@torch.no_grad()
def test_final_statistics_of_a_two_layer_network_equal_values_computed_by_hand(norm):
    net, method, stream = trained(norm)
    before = weights_of(net)
    net.eval()
    own = accuracies(method, stream, range(2))
    results = final_statistics(method, stream, own)["class_il"]

    def images(batches):
        return method.augment.normalize(torch.cat([batch.images for batch in batches]))

    stored = images([method.buffer.all_samples()])
    weights = torch.tensor([1 / 2, *[1 / 10] * 5], dtype=torch.float64)  # each of the two tasks has half of the weight
    passes = {
        "buffer": (stored, None),
        "balanced": (stored, weights),
        "train": (images(batch for task in (0, 1) for batch in stream.in_order(task, 100)), None),
        "test": (images(batch for task in (0, 1) for batch in stream.test(task, 100)), None),
        "last_task": (images(stream.in_order(1, 100)), None),
    }
    for kind, (inputs, sample_weights) in passes.items():
        _, statistics = helpers.two_layers_by_hand(net, norm, inputs, sample_weights)
        assert results[kind] == accuracies_by_hand(net, method, stream, norm, statistics), kind
    assert results["running"] == own["class_il"]
    assert len({tuple(row) for row in results.values()}) > 1, "all kinds agree, so this test would show nothing"
    assert all(tensor.equal(before[name]) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("norm", ["gn", "none"])
def test_norms_without_running_statistics_have_none(norm):
    _, method, stream = trained(norm)
    results = final_statistics(method, stream, accuracies(method, stream, range(2)))
    assert results["task_il"] == dict.fromkeys(("running", "buffer", "balanced", "train", "test", "last_task"))


def test_without_a_buffer_only_its_statistics_are_missing():
    _, method, stream = trained("bn", "sgd")
    results = final_statistics(method, stream, accuracies(method, stream, range(2)))["class_il"]
    assert [kind for kind, row in results.items() if row is None] == ["buffer", "balanced"]


def test_training_images_are_drawn_from_all_tasks_in_proportion(monkeypatch):
    monkeypatch.setattr("utils.run.outcomes.DRAWN_IMAGES", 8)
    spec = replace(SPEC, train_sizes=(12, 36))
    stream = make_stream(spec)
    _, method = build_run(run_config("er", "bn"), stream)
    [batch] = list(drawn_images(method, stream, range(2)))
    assert np.bincount(batch.tasks_host).tolist() == [2, 6]
    assert len(np.unique(batch.images[:, 0, 0, 0])) == 8


def test_test_images_are_spaced_evenly_over_all_tasks(monkeypatch):
    """The first pixel is the image's number, by which they are sorted as by a class."""
    monkeypatch.setattr("utils.run.outcomes.DRAWN_IMAGES", 8)
    stream = make_stream(replace(SPEC, test_sizes=(20, 40)))
    _, method = build_run(run_config("er", "bn"), stream)
    [batch] = list(spaced_test_images(method, stream))
    assert sorted(sample_numbers(batch.images)) == [0, 8, 16, 20, 28, 36, 44, 52]


def test_late_evaluations_end_with_the_last_step():
    late = [remaining for remaining in range(500) if is_late(remaining, 4)]
    assert late == [50, 100, 150]  # and the end itself
    assert not any(is_late(remaining, 0) for remaining in range(500))


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short_intervals():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("utils.run.outcomes.LATE_EVERY", 5)
        yield


def without_outcomes(record: dict) -> dict:
    return {
        setting: {name: value for name, value in result.items() if name not in ("final_statistics", "late_evaluations")}
        for setting, result in record["results"].items()
    }


@pytest.fixture(scope="module")
def plain_and_full(tmp_path_factory, short_intervals):
    """Records of a run without the outcomes and of the same run with both."""
    folders = [tmp_path_factory.mktemp(name) for name in ("plain", "full")]
    return [runner(folder)(*RUN, *more).record for folder, more in zip(folders, ([], BOTH), strict=True)]


def test_outcomes_change_no_other_number(plain_and_full):
    plain, full = plain_and_full
    assert plain["run"] == full["run"]
    assert plain["results"] == without_outcomes(full)
    assert plain["steps"] == full["steps"]


def test_late_evaluations_are_summed_up(plain_and_full):
    _, full = plain_and_full
    for result in full["results"].values():
        late = result["late_evaluations"]
        assert late["count"] == len(late["values"]) == 3
        assert late["values"][-1] == result["metrics"]["faa"]
        assert late["mean"] == fmean(late["values"])
        assert late["std"] == stdev(late["values"])


@pytest.mark.parametrize("where", ["late", "final"])
def test_a_run_killed_during_the_extra_evaluations_goes_on_to_the_same_record(
    plain_and_full, tmp_path, monkeypatch, where
):
    name = {"late": "utils.run.training.Training._evaluate_mid_task", "final": "utils.run.outcomes.drawn_images"}[where]

    def interrupt(*_, **__):
        raise Interrupted(15)

    with monkeypatch.context() as patch:
        patch.setattr(name, interrupt)
        assert runner(tmp_path)(*RUN, *BOTH, "--checkpoint_every", "7").code == 143
    assert runner(tmp_path)(*RUN, *BOTH).record["results"] == plain_and_full[1]["results"]


def test_a_finished_run_that_lacks_an_outcome_asks_for_a_rerun(tmp_path, short_intervals):
    run = runner(tmp_path)
    record = run(*RUN, "--debug_mode").record
    for flags in (["--final_statistics"], ["--late_evaluations", "2"], ["--save_model"], ["--probe", "weights"]):
        ended = run(*RUN, "--debug_mode", *flags)
        assert ended.code == 2
        assert " ".join(flags) in ended.stderr
        assert "--rerun" in ended.stderr
    again = run(*RUN, "--debug_mode", *BOTH, "--rerun").record
    assert without_outcomes(again) == record["results"]
    old = json.loads((tmp_path / "runs" / record["run"] / "record.old.json").read_text())
    assert old["results"] == record["results"]
