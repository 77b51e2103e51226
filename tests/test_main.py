"""Whole commands: what a run prints, writes and repeats, with every method and norm."""

import json
import re

import numpy as np
import pytest
import torch
from conftest import ANSWERED, refuse_to_train, runner

from utils.config.resolve import resolve
from utils.run import metrics
from utils.run.build import StreamBuilder

DIGITS = ["--dataset", "seq-digits", "--num_filters", "4"]
TINY = [*DIGITS, "--debug_mode"]
TIMES = ("date", "seconds", "wall_seconds", "steps_per_second", "seal")


def without_times(record):
    kept = {name: value for name, value in record.items() if name not in TIMES}
    kept["environment"] = {k: v for k, v in record["environment"].items() if k != "peak_memory_mb"}
    kept["config"] = {k: v for k, v in record["config"].items() if k != "rerun"}
    return kept


def log_lines(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


# --- a whole run ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """DER++ with AdaB2N on all digits: (what runs there, how the first run ended, its log)."""
    run = runner(tmp_path_factory.mktemp("whole"))
    finished = run("--model", "derpp", "--norm", "adab2n", *DIGITS)
    return run, finished, log_lines(finished.folder)


def test_run_ends_with_its_record_and_nothing_on_standard_error(whole):
    _, finished, _ = whole
    assert finished.code == 0
    assert finished.stdout.splitlines()[-1] == f"record: {finished.folder / 'record.json'}"
    assert finished.stderr == ""
    assert finished.record["status"] == "finished"
    assert finished.record["run"] == finished.folder.name
    assert re.fullmatch(r"derpp-adab2n-seq-digits-online-m200-s0-[0-9a-f]{12}", finished.folder.name)


def test_record_holds_both_matrices_up_to_the_next_task(whole):
    results = whole[1].record["results"]
    assert set(results) == {"class_il", "task_il"}
    for result in results.values():
        matrix = result["matrix"]
        assert [len(row) for row in matrix] == [5] * 5
        for i, row in enumerate(matrix):
            assert [value is None for value in row] == [j > i + 1 for j in range(5)]
            assert all(0 <= value <= 100 for value in row if value is not None)
    for i in range(5):
        for j in range(min(i + 2, 5)):
            assert results["class_il"]["matrix"][i][j] <= results["task_il"]["matrix"][i][j]


def test_metrics_of_the_record_are_those_of_its_matrices(whole):
    for result in whole[1].record["results"].values():
        a, untrained = result["matrix"], result["untrained"]
        assert result["metrics"] == metrics.summary(a, untrained)
        assert result["metrics"]["faa"] == pytest.approx(np.mean(a[4]))
        assert result["metrics"]["bwt"] == pytest.approx(np.mean([a[4][j] - a[j][j] for j in range(4)]))
        assert result["metrics"]["fwt"] == pytest.approx(np.mean([a[j - 1][j] - untrained[j] for j in range(1, 5)]))
        best = [max(a[i][j] for i in range(j, 4)) for j in range(4)]
        assert result["metrics"]["forgetting"] == pytest.approx(np.mean(best) - np.mean(a[4][:4]))


def test_run_learns_more_than_the_last_task(whole):
    results = whole[1].record["results"]
    assert results["class_il"]["metrics"]["faa"] > 40
    assert results["task_il"]["metrics"]["faa"] > 75


def test_record_says_what_ran_on_what(whole):
    record = whole[1].record
    assert record["steps"] == 145
    assert record["steps_per_second"] == pytest.approx(145 / record["seconds"])
    assert record["wall_seconds"] > record["seconds"] > 0
    config = record["config"]
    selected = [config[name] for name in ("model", "norm", "dataset", "backbone")]
    assert selected == ["derpp", "adab2n", "seq-digits", "resnet18"]
    assert [config[name] for name in ("lr", "alpha", "beta", "kappa")] == [0.01, 0.1, 0.5, 0.7]
    assert (config["buffer_size"], config["minibatch_size"], config["replay_forward"]) == (200, 10, "joint")
    assert record["data"]["reported_on"] == "test set"
    assert record["data"]["test_sizes"] == [73, 73, 74, 73, 71]
    assert sum(record["data"]["train_sizes"]) + sum(record["data"]["test_sizes"]) == 1797
    environment = record["environment"]
    assert environment["num_threads"] == 1
    assert environment["torch"] == torch.__version__
    assert environment["numpy"] == np.__version__
    assert environment["peak_memory_mb"] > 100
    assert {"device", "device_type", "python", "torchvision", "commit", "peak_cuda_memory_mb"} <= set(environment)


def test_identity_has_what_changes_numbers_and_nothing_else(whole):
    identity, config = whole[1].record["identity"], whole[1].record["config"]
    for name in ("model", "norm", "lr", "seed", "kappa", "num_filters", "class_order_seed", "debug_mode", "dtype"):
        assert identity[name] == config[name]
    assert identity["numerics_version"] >= 1
    hidden = {"device", "num_threads", "log_every", "results_path", "notes", "rerun", "save_model", "non_verbose"}
    assert hidden & set(config) == hidden
    assert not hidden & set(identity)


def test_tables_on_standard_output_hold_the_numbers(whole):
    _, finished, _ = whole
    results = finished.record["results"]
    for setting, title in (("class_il", "Class-IL"), ("task_il", "Task-IL")):
        matrix = results[setting]["matrix"]
        assert f"{title} accuracy, %" in finished.stdout
        row = [f"{value:.2f}" for value in (*matrix[4], results[setting]["metrics"]["faa"])]
        assert f"after task 5 {' '.join(row)}" in re.sub(" +", " ", finished.stdout)
    (faa,) = [line for line in finished.stdout.splitlines() if "(FAA)" in line]
    assert faa.split()[-2:] == [f"{results[s]['metrics']['faa']:.2f}" for s in ("class_il", "task_il")]


def test_log_has_losses_and_evaluations_in_order(whole):
    _, finished, log = whole
    steps = [line["step"] for line in log if line["event"] == "log"]
    assert steps == [29, 58, 87, 116, 145]
    assert all(np.isfinite(line["loss"]) and line["lr"] == 0.01 for line in log if line["event"] == "log")
    evaluated = [line for line in log if line["event"] == "evaluation"]
    assert [line["step"] for line in evaluated] == steps
    rows = finished.record["results"]["class_il"]["matrix"]
    assert [line["accuracy"]["class_il"] for line in evaluated] == [
        [value for value in row if value is not None] for row in rows
    ]
    assert json.loads((finished.folder / "config.json").read_text()) == finished.record["config"]


def test_rerun_gives_the_same_bits_and_the_plain_command_answers_from_the_record(whole, monkeypatch):
    run, first, first_log = whole
    second = run("--model", "derpp", "--norm", "adab2n", *DIGITS, "--rerun")
    assert second.code == 0
    assert second.folder == first.folder
    assert second.stderr == ""
    assert without_times(second.record) == without_times(first.record)
    assert log_lines(second.folder) == first_log
    refuse_to_train(monkeypatch)
    third = run("--model", "derpp", "--norm", "adab2n", *DIGITS)
    assert third.code == 0
    assert ANSWERED.fullmatch(third.stderr)
    assert third.record == second.record
    assert third.stdout == second.stdout


# --- every norm ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "flags"),
    [
        ("bn", []),
        ("ln", []),
        ("in", []),
        ("gn", ["--groups", "4"]),
        ("cn", ["--groups", "4"]),
        ("adab2n", ["--fidelity", "paper", "--lambd", "1e-3"]),
        ("brn", ["--brn_warmup", "5"]),
        ("sn", []),
        ("none", []),
        ("bn_frozen", ["--freeze_after", "2"]),
    ],
)
def test_every_norm_finishes(run_main, norm, flags):
    finished = run_main("--model", "er_ace", "--norm", norm, *flags, *TINY)
    assert finished.code == 0
    assert finished.record["config"]["norm"] == norm
    assert finished.record["results"]["task_il"]["metrics"]["faa"] > 20


# --- validation -----------------------------------------------------------------------------------------------


def test_validation_reports_on_held_out_training_data(run_main):
    finished = run_main("--model", "sgd", "--validation", "0.1", *TINY)
    data = finished.record["data"]
    assert data["reported_on"] == "validation split"
    assert data["test_sizes"] == [28, 29, 28, 28, 28]
    assert data["train_sizes"] == [259, 258, 261, 259, 255]
    for value in finished.record["results"]["class_il"]["matrix"][0][:1]:
        assert value * 28 / 100 == pytest.approx(round(value * 28 / 100))


def test_held_out_samples_do_not_depend_on_the_seed():
    streams = []
    for seed in (0, 5):
        config = resolve(
            {"model": "sgd", "dataset": "seq-digits", "validation": 0.1, "seed": seed, "class_order_seed": 0}
        )
        streams.append(StreamBuilder(config).stream(torch.device("cpu")))
    first, second = streams
    assert torch.equal(first.test_data.images, second.test_data.images)
    assert torch.equal(first.train_data.images, second.train_data.images)
