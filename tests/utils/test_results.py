"""Runs as data: every column has what the record, the log or the matrix says."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from conftest import runner

from tests.scripts.records import finish, run_of
from utils.errors import UsageError
from utils.results import curves, load, matrices

ROOT = Path(__file__).resolve().parents[2]
TINY = ["--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4", "--debug_mode", "--device", "cpu"]


def warnings(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Three runs of main.py by their model: one that finished, one of joint training, one that failed."""
    run = runner(tmp_path_factory.mktemp("real") / "results")
    words = {"er": ["--log_every", "2"], "joint": [], "sgd": ["--lr", "1e30"]}
    return {model: run("--model", model, *TINY, *more) for model, more in words.items()}


@pytest.fixture(scope="module")
def results(real):
    return real["er"].folder.parents[1]


# --- load -------------------------------------------------------------------------------------------------------------


def test_row_of_a_real_run_has_all_that_its_record_says(real, results):
    record, frame = real["er"].record, load(results)
    assert list(frame["run"]) == [real["er"].record["run"], real["joint"].record["run"]]
    row = frame.iloc[0]
    for name, value in record["config"].items():
        name = f"option_{name}" if name in ("device", "num_threads") else name
        if value is None:
            assert pd.isna(row[name])
        else:
            assert row[name] == ("" if value == [] else value)
    for setting in ("class_il", "task_il"):
        for name, value in record["results"][setting]["metrics"].items():
            assert row[f"{setting}_{name}"] == value
    for name in ("status", "steps", "seconds", "wall_seconds", "steps_per_second"):
        assert row[name] == record[name]
    for name in ("device", "torch", "num_threads"):
        assert row[name] == record["conditions"][0][name]
    assert row["date"] == pd.Timestamp(record["date"])
    assert (None if pd.isna(row["commit"]) else row["commit"]) == record["environment"]["commit"]
    assert row["folder"] == str(real["er"].folder)


def test_columns_of_a_kind_stand_together(tmp_path):
    """kappa is an option of the second run alone, domain_il a setting of the first."""
    some = {"metrics": {"faa": 1.0, "bwt": 2.0}}
    finish(run_of(tmp_path, "er"), 1.0, results={"class_il": some, "domain_il": some})
    finish(run_of(tmp_path, "joint", "adab2n"), 1.0, results={"class_il": some, "task_il": some})
    names = list(load(tmp_path))
    assert names[:6] == ["run", "status", "date", "commit", "model", "norm"]
    assert names[-14:] == [
        *("class_il_faa", "class_il_bwt", "domain_il_faa", "domain_il_bwt", "task_il_faa", "task_il_bwt"),
        *("steps", "seconds", "wall_seconds", "steps_per_second", "device", "torch", "num_threads", "folder"),
    ]
    assert {"buffer_size", "kappa"} < set(names[4:-14])


def test_kinds_of_columns(tmp_path):
    """Two runs of which one has no buffer and no kappa, and the other other milestones."""
    finish(run_of(tmp_path, "er", "adab2n", lr=0.5), 50.0, seconds=2)
    finish(run_of(tmp_path, "sgd", lr_milestones=(3, 5)), 10.0, seconds=2.5, steps_per_second=7)
    frame = load(tmp_path).set_index("model")
    assert frame["seed"].dtype == "int64"
    assert frame["lr"].dtype == frame["class_il_faa"].dtype == frame["kappa"].dtype == "float64"
    assert frame["debug_mode"].dtype == bool
    assert frame["validation"].dtype == "float64"
    assert frame["validation"].isna().all()
    assert frame["date"].dt.year.tolist() == [2026, 2026]
    assert frame["buffer_size"].dtype == "Int64"
    assert frame["buffer_size"]["er"] == 200
    assert pd.isna(frame["buffer_size"]["sgd"])
    assert frame["kappa"]["er"] == 0.7
    assert math.isnan(frame["kappa"]["sgd"])
    assert frame["lr_milestones"].to_dict() == {"er": "", "sgd": "3,5"}
    assert frame["seconds"].to_dict() == {"er": 2.0, "sgd": 2.5}
    assert frame["steps_per_second"].isna().to_dict() == {"er": True, "sgd": False}


def test_option_of_several_kinds_is_text_and_one_named_like_a_fact_keeps_apart(tmp_path):
    for seed, width in enumerate((3, "wide", True)):
        run = run_of(tmp_path, seed=seed)
        finish(run, 1.0, config={"seed": seed, "width": width, "steps": 7, "on": None if seed else True})
    frame = load(tmp_path)
    assert list(frame["width"]) == ["3", "wide", "True"]
    assert list(frame["option_steps"]) == [7, 7, 7]
    assert set(frame["steps"]) == {run.steps}
    assert frame["on"].dtype == "boolean"


def test_conditions_that_changed_on_the_way_are_missing(tmp_path):
    one = {"device": "cpu", "torch": "2", "num_threads": 1}
    finish(run_of(tmp_path), 1.0, conditions=[one, one | {"num_threads": 2}])
    row = load(tmp_path).iloc[0]
    assert (row["device"], row["torch"]) == ("cpu", "2")
    assert pd.isna(row["num_threads"])


def test_settings_are_those_of_the_records(tmp_path):
    finish(run_of(tmp_path), 1.0, results={"domain_il": {"metrics": {"faa": 3.5, "fwt": None}}})
    frame = load(tmp_path)
    assert frame["domain_il_faa"].tolist() == [3.5]
    assert frame["domain_il_fwt"].isna().all()
    assert "class_il_faa" not in frame


def test_failed_runs_are_there_if_asked_for(real, results):
    frame = load(results, failed=True).set_index("model")
    assert frame["status"].to_dict() == {"er": "finished", "joint": "finished", "sgd": "failed"}
    assert frame["reason"]["sgd"] == real["sgd"].record["reason"]
    assert frame[["class_il_faa", "steps", "seconds"]].loc["sgd"].isna().all()
    assert "reason" not in load(results)


def test_folder_of_run_folders(results):
    pd.testing.assert_frame_equal(load(results / "runs"), load(str(results)))


def test_record_that_cannot_be_trusted_is_left_out_and_told(tmp_path, capsys):
    good, bad = run_of(tmp_path, seed=1), run_of(tmp_path, seed=2)
    for run in (good, bad):
        finish(run, 50.0)
    file = bad.folder / "record.json"
    file.write_text(file.read_text().replace("50.0", "90.0"))
    assert list(load(tmp_path)["run"]) == [good.name]
    assert warnings(capsys) == [
        f"warning: {file} is left out: its seal does not match: it has been changed, or damaged"
    ]


@pytest.mark.parametrize("failed", [False, True])
def test_path_without_runs(tmp_path, failed):
    with pytest.raises(UsageError, match=f"{tmp_path} has no runs; give the --results_path"):
        load(tmp_path, failed=failed)
    with pytest.raises(UsageError, match="nowhere is no folder"):
        load(tmp_path / "nowhere", failed=failed)


def test_path_with_failed_runs_only(tmp_path):
    finish(run_of(tmp_path), 1.0, status="failed")
    with pytest.raises(UsageError, match="has no finished runs, only 1 failed: see --failed"):
        load(tmp_path)
    assert len(load(tmp_path, failed=True)) == 1


# --- curves and matrices ----------------------------------------------------------------------------------------------


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
    both = curves(results)
    assert both["run"].nunique() == 2
    assert [str(kind) for kind in both.dtypes] == ["str", *["int64"] * 3, *["float64"] * 3]
    assert warnings(capsys) == []


def test_missing_and_damaged_logs_are_told(tmp_path, capsys):
    with_log, without = run_of(tmp_path, seed=0), run_of(tmp_path, seed=1)
    for run in (with_log, without):
        finish(run, 1.0)
    line = {"event": "log", "step": 3, "task": 0, "epoch": 0, "loss": None, "lr": None, "seconds": 0.5}
    log = with_log.folder / "metrics.jsonl"
    log.write_text(f'{json.dumps(line)}\n{{"event": "log", "step": 4}}\n7\n{{"eve')
    curve = curves(tmp_path)
    assert curve[["run", "step", "seconds"]].values.tolist() == [[with_log.name, 3, 0.5]]
    assert curve[["loss", "lr"]].isna().all(axis=None)
    assert warnings(capsys) == [
        f"warning: {log}: 3 damaged lines are left out",
        "warning: 1 of 2 runs have no metrics.jsonl, and so no curve",
    ]
    assert list(curves(load(tmp_path).iloc[1:])) == list(curve)


def test_matrices_have_every_accuracy_that_was_measured(real, results):
    frame = matrices(results)
    assert list(frame) == ["run", "setting", "after_task", "task", "accuracy"]
    matrix = real["er"].record["results"]["task_il"]["matrix"]
    mine = frame[(frame["run"] == real["er"].record["run"]) & (frame["setting"] == "task_il")]
    found = {(row.after_task, row.task): row.accuracy for row in mine.itertuples()}
    expected = {(i, j): matrix[i][j] for i in range(5) for j in range(5) if matrix[i][j] is not None}
    assert found == expected
    assert len(found) == 2 + 3 + 4 + 5 + 5  # up to the next task


def test_matrix_of_joint_training_is_after_the_last_task(real, results):
    frame = load(results)
    mine = matrices(frame[frame["model"] == "joint"])
    assert set(mine["after_task"]) == {4}
    accuracy = mine[mine["setting"] == "class_il"]["accuracy"]
    assert accuracy.tolist() == real["joint"].record["results"]["class_il"]["matrix"][0]
    assert accuracy.mean() == pytest.approx(frame.set_index("model")["class_il_faa"]["joint"])


def test_pandas_is_imported_when_it_is_needed():
    code = "import sys, utils.results; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
