"""Runs as data: every column has what the record, the log or the matrix says."""

import json

import pandas as pd
import pytest
from conftest import runner

from tests.scripts.records import finish, run_of
from utils.errors import UsageError
from utils.results import curves, load, matrices, mean_table

TINY = ["--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4", "--debug_mode", "--device", "cpu"]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Three runs of main.py by their model: one that finished, one of joint training, one that failed."""
    run = runner(tmp_path_factory.mktemp("real") / "results")
    words = {"er": ["--log_every", "2"], "joint": [], "sgd": ["--lr", "1e30"]}
    return {model: run("--model", model, *TINY, *more) for model, more in words.items()}


@pytest.fixture(scope="module")
def results(real):
    return real["er"].folder.parents[1]


def test_row_of_a_real_run_has_all_that_its_record_says(real, results):
    record, frame = real["er"].record, load(results)
    assert list(frame["run"]) == [real["er"].record["run"], real["joint"].record["run"]]
    expected = {name: record[name] for name in ("status", "steps", "seconds", "wall_seconds", "steps_per_second")}
    expected |= {name: record["conditions"][0][name] for name in ("device", "torch", "num_threads")}
    for name, value in record["config"].items():
        expected[f"option_{name}" if name in ("device", "num_threads") else name] = "" if value == [] else value
    for setting in ("class_il", "task_il"):
        expected |= {f"{setting}_{name}": value for name, value in record["results"][setting]["metrics"].items()}
    row = frame.iloc[0].astype("object").where(frame.iloc[0].notna(), None)
    assert {name: row[name] for name in expected} == expected
    assert row["date"] == pd.Timestamp(record["date"])
    assert row["folder"] == str(real["er"].folder)
    pd.testing.assert_frame_equal(load(results / "runs"), frame)


def test_columns_of_different_runs(tmp_path):
    """kappa is an option of one run, domain_il a setting of the other, and the milestones differ."""
    some = {"matrix": [[0.0, None], [2.0, 0.0]], "untrained": [0.0, 0.0], "metrics": {"faa": 1.0, "bwt": 2.0}}
    conditions = [{"device": "cpu", "torch": "2", "num_threads": 1}, {"device": "cpu", "torch": "2", "num_threads": 2}]
    finish(run_of(tmp_path, "er"), 1.0, results={"class_il": some, "domain_il": some}, conditions=conditions)
    finish(run_of(tmp_path, "sgd", "adab2n", lr_milestones=(3, 5)), 1.0, results={"class_il": some, "task_il": some})
    frame = load(tmp_path)
    names = list(frame)
    assert names[:6] == ["run", "status", "date", "commit", "model", "norm"]
    measured = ["steps", "seconds", "wall_seconds", "steps_per_second", "device", "torch", "num_threads", "folder"]
    assert names[-len(measured) :] == measured
    assert [name for name in names if name.endswith("_faa")] == ["class_il_faa", "domain_il_faa", "task_il_faa"]
    frame = frame.set_index("model")
    assert frame["class_il_faa"].dtype == frame["task_il_faa"].dtype == "float64"
    assert frame["buffer_size"].dtype == "Int64"
    assert (frame["buffer_size"]["er"], frame["kappa"]["sgd"]) == (200, 0.7)
    assert pd.isna(frame["buffer_size"]["sgd"])
    assert pd.isna(frame["kappa"]["er"])
    assert frame["lr_milestones"].to_dict() == {"er": "", "sgd": "3,5"}
    assert pd.isna(frame["num_threads"]["er"])  # it was resumed with another number
    assert frame["device"]["er"] == "cpu"


def test_failed_runs_are_included_on_request(real, results):
    frame = load(results, failed=True).set_index("model")
    assert frame["status"].to_dict() == {"er": "finished", "joint": "finished", "sgd": "failed"}
    assert frame["reason"]["sgd"] == real["sgd"].record["reason"]
    assert frame[["class_il_faa", "steps", "seconds"]].loc["sgd"].isna().all()
    assert "reason" not in load(results)


def test_damaged_record_is_skipped_with_a_warning(tmp_path, capsys):
    good, bad = run_of(tmp_path, seed=1), run_of(tmp_path, seed=2)
    for run in (good, bad):
        finish(run, 50.0)
    file = bad.folder / "record.json"
    file.write_text(file.read_text().replace("50.0", "90.0"))
    assert list(load(tmp_path)["run"]) == [good.name]
    (line,) = capsys.readouterr().err.splitlines()
    assert str(file) in line


def test_folder_without_finished_runs(tmp_path):
    with pytest.raises(UsageError, match="--results_path"):
        load(tmp_path / "nowhere", failed=True)
    finish(run_of(tmp_path), 1.0, status="failed")
    with pytest.raises(UsageError, match="--failed"):
        load(tmp_path)
    assert len(load(tmp_path, failed=True)) == 1


def test_curves_are_the_log_lines(real, results, capsys):
    lines = [json.loads(line) for line in (real["er"].folder / "metrics.jsonl").read_text().splitlines()]
    names = ["step", "task", "epoch", "loss", "lr", "seconds"]
    logged = [[line[name] for name in names] for line in lines if line["event"] == "log"]
    assert len(logged) == 10  # five tasks of three batches, a line after the second and the last
    frame = load(results)
    curve = curves(frame[frame["model"] == "er"])
    assert list(curve) == ["run", *names]
    assert set(curve["run"]) == {real["er"].record["run"]}
    assert curve[names].values.tolist() == logged
    assert curves(results)["run"].nunique() == 2
    assert capsys.readouterr().err == ""


def test_matrices_have_every_accuracy_that_was_measured(real, results):
    frame = matrices(results)
    assert list(frame) == ["run", "setting", "after_task", "task", "accuracy"]
    matrix = real["er"].record["results"]["task_il"]["matrix"]
    mine = frame[(frame["run"] == real["er"].record["run"]) & (frame["setting"] == "task_il")]
    accuracies = {(row.after_task, row.task): row.accuracy for row in mine.itertuples()}
    assert accuracies == {(i, j): matrix[i][j] for i in range(5) for j in range(5) if matrix[i][j] is not None}
    assert len(accuracies) == 2 + 3 + 4 + 5 + 5  # up to the next task
    joint = frame[(frame["run"] == real["joint"].record["run"]) & (frame["setting"] == "class_il")]
    assert set(joint["after_task"]) == {4}
    assert joint["accuracy"].tolist() == real["joint"].record["results"]["class_il"]["matrix"][0]


def test_means_are_of_runs_that_differ_in_their_seed_only(tmp_path):
    for seed, class_il in ((0, 10.0), (1, 30.0)):
        finish(run_of(tmp_path, "er", "bn", seed=seed), class_il)
        finish(run_of(tmp_path, "er", "adab2n", seed=seed), class_il + 1)
    runs = load(tmp_path)
    assert mean_table(runs, "class_il_faa", "model", "norm").loc["er"].to_dict() == {"bn": 20.0, "adab2n": 21.0}
    finish(run_of(tmp_path, "er", "bn", seed=2, buffer_size=50), 90.0)
    runs = load(tmp_path)
    with pytest.raises(UsageError, match=r"buffer_size: 200, 50\)"):
        mean_table(runs, "class_il_faa", ["model"], ["norm"])
    by_buffer = mean_table(runs, "class_il_faa", ["model", "buffer_size"], "norm")
    assert by_buffer["bn"].to_dict() == {("er", 50): 90.0, ("er", 200): 20.0}
