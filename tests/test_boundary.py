"""`--boundary`: streams in which no task begins or ends for the method."""

import numpy as np
import pytest
import torch
from conftest import call
from forked import refusal

from models.method import Method
from models.sgd import Sgd
from tests.helpers import make_spec, make_stream, record_steps, run_config, sample_numbers
from tests.models.cut_off import assert_a_cut_off_run_ends_the_same
from utils.config.resolve import resolve
from utils.data.file_stream import Files, FileStream
from utils.data.random import generator
from utils.data.stream import arrival_times

KINDS = {"none": ["none"], "blurry": ["blurry", "--boundary_strength", "0.7"], "gaussian": ["gaussian"]}
DIGITS = ["--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "8", "--boundary"]
SPEC = make_spec(n_tasks=4, n_classes=8, train_sizes=(500,) * 4)

# --- the order of samples ---------------------------------------------------------------------------------------------


def tasks_in_order(boundary: str, strength: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and former tasks of all samples in the order of the stream."""
    stream = make_stream(SPEC, seed=3).without_boundaries(boundary, strength)
    labels = np.concatenate([batch.labels_host for batch in stream.batches(0, 0, 0)])
    assert np.array_equal(np.bincount(labels), np.bincount(stream.train_labels))  # every sample once
    return labels, labels // 2


@pytest.mark.parametrize(("boundary", "strength"), [("none", None), ("blurry", 0.0), ("gaussian", 0.0)])
def test_without_boundaries_all_tasks_come_throughout(boundary, strength):
    _, tasks = tasks_in_order(boundary, strength)
    for quarter in np.split(tasks, 4):
        assert np.bincount(quarter, minlength=4).min() > 90  # of 125 on average


@pytest.mark.parametrize("boundary", ["blurry", "gaussian"])
def test_full_strength_is_the_sharp_order(boundary):
    _, tasks = tasks_in_order(boundary, 1.0)
    assert np.array_equal(tasks, np.sort(tasks))


def test_a_share_of_the_classes_is_disjoint_in_a_blurry_stream():
    labels, _ = tasks_in_order("blurry", 0.5)
    spans = [np.ptp(np.flatnonzero(labels == label)) for label in range(8)]
    assert sum(span > 1800 for span in spans) == 4  # throughout 2,000 samples
    assert sum(span < 800 for span in spans) == 4


def test_the_spread_of_a_gaussian_stream_falls_with_its_strength():
    labels, tasks = np.repeat(np.arange(8), 250), np.repeat(np.arange(4), 500)
    deviations = []
    for strength in (0.25, 0.5, 0.8):
        times = arrival_times(labels, tasks, "gaussian", strength, generator(0, "test"))
        deviations.append((times - tasks - 0.5).std())
    expected = [np.hypot((1 - s) / s, 12**-0.5) for s in (0.25, 0.5, 0.8)]  # the noise, and a uniform time in the task
    assert deviations == pytest.approx(expected, rel=0.05)


def test_images_from_files_come_in_the_order_of_those_in_memory():
    kept = make_stream(SPEC)
    numbers, labels = sample_numbers(kept.train_data.images), kept.train_labels
    files = Files(np.array([str(number).encode() for number in numbers]), labels)
    images = {
        str(number).encode(): image.numpy() for number, image in zip(numbers, kept.train_data.images, strict=True)
    }
    places = (kept.train_ranges, kept.test_ranges, kept.seed, kept.batch_size)
    read = FileStream(SPEC, files, files, *places, images.__getitem__, 0)
    for boundary, strength in (("none", None), ("blurry", 0.5), ("gaussian", 0.5)):
        both = [stream.without_boundaries(boundary, strength).batches(0, 0, 3) for stream in (kept, read)]
        for ours, theirs in zip(*both, strict=True):
            assert np.array_equal(ours.labels_host, theirs.labels_host)
            assert np.array_equal(sample_numbers(ours.images), sample_numbers(theirs.images))


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_ends_the_same(tmp_path, kind):
    words = ["--model", "derpp", "--norm", "adab2n", "--boundary", *KINDS[kind], "--eval_every", "5"]
    record = assert_a_cut_off_run_ends_the_same(tmp_path, *words, "--final_statistics", at=(3, 20))["record"]
    assert list(record["results"]) == ["class_il"]
    result = record["results"]["class_il"]
    points = [point["accuracy"][0] for point in result["points"]]
    assert len(points) == 7
    assert result["metrics"]["aaa"] == pytest.approx(np.mean([*points, result["matrix"][0][0]]))
    assert result["final_statistics"]["balanced"] is result["final_statistics"]["last_task"] is None


def test_a_saved_network_is_evaluated_as_at_the_end(results, run_main):
    finished = run_main("--model", "er", *DIGITS, "none", "--batch_size", "40", "--save_model")
    assert finished.code == 0
    again = call(["--eval_only", str(finished.folder)])
    assert (again.code, again.stderr) == (0, "")


def test_accuracies_count_the_classes_so_far_and_samples_before_training_on_them(monkeypatch, run_main):
    """The network always says 3."""
    answers = torch.nn.functional.one_hot(torch.tensor([3]), 10).float()
    monkeypatch.setattr(Sgd, "predict", lambda self, inputs: answers.expand(len(inputs), -1), raising=False)
    words = ["--model", "sgd", *DIGITS, "gaussian", "--boundary_strength", "0.95", "--eval_every", "10"]
    result = run_main(*words).record["results"]["class_il"]
    assert result["metrics"]["prequential"] == pytest.approx(100 * 146 / 1433)  # training images of 3
    accuracies = [point["accuracy"][0] for point in result["points"]]
    assert accuracies[0] == 0.0  # only the first task so far
    assert max(accuracies) > 1.5 * accuracies[-1]  # few classes beside 3, then all
    assert accuracies[-1] == pytest.approx(result["matrix"][0][0])


def test_er_ace_replays_as_soon_as_the_buffer_has_samples():
    stream = make_stream(make_spec()).without_boundaries("none", None)
    config = run_config("er_ace", boundary="none")
    names, method, _ = record_steps(config, stream, lambda step: tuple(step.batches))
    assert names == [("current",), *[("current", "replay")] * 4]
    assert method.highest_seen == 3  # only the classes of the batch compete


def test_classes_are_balanced_by_default():
    shared = {"model": "er", "norm": "adab2n", "dataset": "seq-digits"}
    config = resolve(shared | {"boundary": "none", "buffer_mode": "ring"})
    assert (config.balance_groups, config.absent_tasks, config.ring_quota) == ("class", "ignored", "class")
    assert config.eval_every == 15
    config = resolve(shared | {"boundary": "gaussian", "balance_groups": "source"})
    assert (config.balance_groups, config.boundary_strength) == ("source", 0.5)


@pytest.mark.parametrize("model", ["er", "er_ace", "der", "agem_r", "sgd"])
@pytest.mark.parametrize("groups", ["class", "source"])
def test_methods_without_tasks_train(run_main, model, groups):
    words = ["--model", model, "--norm", "adab2n", "--balance_groups", groups, *DIGITS, "none", "--debug_mode"]
    assert run_main(*words).code == 0


# --- what needs boundaries --------------------------------------------------------------------------------------------

ER = ["--model", "er", *DIGITS]
ADA = ["--norm", "adab2n"]


@pytest.mark.parametrize(
    ("words", "keyword"),
    [
        *((["--model", model, *DIGITS, "none"], f"--model {model}")
          for model in ("icarl", "ewc_on", "gdumb", "joint", "agem")),
        *((["--model", model, "--dataset", "seq-digits", "--boundary", "none"], f"--model {model}")
          for model in ("er_ace_lider", "derpp_lider")),
        *(([*ER, "blurry", "--norm", norm], f"--norm {norm}")
          for norm in ("tbbn", "bnt", "tbbn_weighted", "bn_frozen")),
        ([*ER, "none", *ADA, "--balance_groups", "task"], "--balance_groups"),
        ([*ER, "none", *ADA, "--ada_t0", "1"], "--ada_t0"),
        ([*ER, "none", "--balance_replay"], "--balance_replay"),
        ([*ER, "none", "--current_share", "1/T"], "--current_share"),
        ([*ER, "none", "--buffer_mode", "ring", "--ring_quota", "task"], "--ring_quota"),
        ([*ER, "none", "--stop_after", "2"], "--stop_after"),
        ([*ER, "none", "--classifier", "seen"], "--classifier"),
        ([*ER, "none", "--scenario", "offline"], "one pass"),
        ([*ER, "none", "--n_iters", "5"], "one pass"),
        ([*ER, "none", "--boundary_strength", "0.5"], "--boundary_strength"),
        ([*ER, "sharp", "--boundary_strength", "0.5"], "--boundary_strength"),
        (["--model", "er", "--dataset", "perm-digits", "--boundary", "none"], "remove --boundary"),
    ],
)  # fmt: skip
def test_what_needs_boundaries_is_one_line(run_main, words, keyword):
    assert keyword in refusal(run_main(*words))


def test_a_method_with_hooks_of_its_own_needs_boundaries_unless_it_says_otherwise():
    class WithHook(Method):
        def end_task(self, task, stream): ...

    class WithSamples(Method):
        def extra_task_samples(self, task): ...

    class Indifferent(WithHook):
        needs_boundaries = False

    assert (Method.requires_boundaries(), WithHook.requires_boundaries()) == (False, True)
    assert WithSamples.requires_boundaries()  # a stream without boundaries has one order, of its own samples
    assert not Indifferent.requires_boundaries()
