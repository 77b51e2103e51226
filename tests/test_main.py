"""A whole run: what it prints, writes and repeats."""

import itertools
import json
import re

import numpy as np
import pytest
import torch
from conftest import ANSWERED, refuse_to_train, runner

from tests.outcomes import TIMES, logged

DIGITS = ["--dataset", "seq-digits", "--num_filters", "4"]
COMMAND = ["--model", "derpp", "--norm", "adab2n", *DIGITS]


def without_times(record):
    environment = {k: v for k, v in record["environment"].items() if k != "peak_memory_mb"}
    config = {k: v for k, v in record["config"].items() if k != "rerun"}
    rest = {name: value for name, value in record.items() if name not in TIMES}
    return rest | {"environment": environment, "config": config}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """DER++ with AdaB2N on all digits: (what runs there, how the first run ended, its log)."""
    run = runner(tmp_path_factory.mktemp("whole"))
    finished = run(*COMMAND)
    return run, finished, logged(finished.folder)


def test_run_ends_with_its_record_and_nothing_on_standard_error(whole):
    _, finished, _ = whole
    assert finished.code == 0
    assert finished.stdout.splitlines()[-1] == f"record: {finished.folder / 'record.json'}"
    assert finished.stderr == ""
    assert finished.record["status"] == "finished"
    assert finished.record["run"] == finished.folder.name
    assert re.fullmatch(r"derpp-adab2n-seq-digits-online-m200-s0-[0-9a-f]{12}", finished.folder.name)


def test_record_holds_both_matrices_up_to_the_next_task(whole):
    class_il, task_il = (whole[1].record["results"][setting]["matrix"] for setting in ("class_il", "task_il"))
    for i, j in itertools.product(range(5), range(5)):
        if j > i + 1:
            assert class_il[i][j] is task_il[i][j] is None
        else:
            assert 0 <= class_il[i][j] <= task_il[i][j] <= 100


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
    assert (environment["num_threads"], environment["torch"]) == (1, torch.__version__)
    assert environment["peak_memory_mb"] > 100
    assert {"device", "device_type", "python", "torchvision", "commit", "peak_cuda_memory_mb"} <= set(environment)


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
    second = run(*COMMAND, "--rerun")
    assert second.code == 0
    assert second.folder == first.folder
    assert second.stderr == ""
    assert without_times(second.record) == without_times(first.record)
    assert logged(second.folder) == first_log
    refuse_to_train(monkeypatch)
    third = run(*COMMAND)
    assert third.code == 0
    assert ANSWERED.fullmatch(third.stderr)
    assert third.record == second.record
    assert third.stdout == second.stdout
