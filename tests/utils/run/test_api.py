"""`run` from Python gives the records of the command line."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import runner

from tests.stopped_runs import Stop, observers_added
from utils.errors import RunFailed, UsageError
from utils.run.api import run

ROOT = Path(__file__).resolve().parents[3]
SMALL = {"dataset": "seq-digits", "backbone": "mlp", "hidden": 8, "num_threads": 1, "non_verbose": True}
DERPP = {"model": "derpp", "norm": "adab2n", "buffer_size": 30, "debug_mode": True} | SMALL


def test_same_record_as_the_command_line(tmp_path):
    result = run(**DERPP, seeds=2, save_model=True, results_path=tmp_path / "python")
    words = "--model derpp --norm adab2n --buffer_size 30 --debug_mode --dataset seq-digits --backbone mlp --hidden 8"
    for seed, record in enumerate(result.records):
        finished = runner(tmp_path / "shell")(*words.split(), "--seed", str(seed), "--save_model")
        assert record["results"] == finished.record["results"]
        assert record["identity"] == finished.record["identity"]
    assert result.record == result.records[0] == json.loads((result.folders[0] / "record.json").read_text())
    assert [row["class_il"]["metrics"]["faa"] for row in (r["results"] for r in result.records)] == list(
        result.metrics["class_il_faa"]
    )
    matrix = result.records[1]["results"]["task_il"]["matrix"]
    assert result.accuracy["task_il"].loc[(1, 4)].tolist() == matrix[4]
    assert list(result.curve["seed"].unique()) == [0, 1]
    first, second = result.network(), result.network(seed=1)
    assert not first.training
    assert not torch.equal(first.classifier.weight, second.classifier.weight)


def test_finished_run_is_not_trained_again(tmp_path):
    first = run(**DERPP, results_path=tmp_path)
    with observers_added(Stop({1})):  # would stop a training
        assert run(**DERPP, results_path=tmp_path).records == first.records


def test_interrupted_cell_resumes_to_the_same_result(tmp_path):
    whole = run(**DERPP, results_path=tmp_path / "whole")
    with observers_added(Stop({7}, signal.SIGINT)), pytest.raises(KeyboardInterrupt):
        run(**DERPP, results_path=tmp_path / "cell")
    assert list((tmp_path / "cell").glob("runs/*/checkpoint-*.pt"))
    again = run(**DERPP, results_path=tmp_path / "cell")
    assert again.record["results"] == whole.record["results"]


@pytest.mark.parametrize(
    ("flags", "word"),
    [({"norm": "bnn"}, "bnn"), ({"lr": -1}, "lr"), ({"bufer_size": 3}, "bufer_size"), ({"dry_run": True}, "dry_run")],
)
def test_bad_usage_is_an_exception(tmp_path, flags, word):
    with pytest.raises(UsageError, match=word) as error:
        run(**(DERPP | flags), results_path=tmp_path)
    assert "\n" not in str(error.value)


def test_network_that_was_not_saved(tmp_path):
    with pytest.raises(UsageError, match="save_model"):
        run(**DERPP, results_path=tmp_path).network()


def test_failed_run_is_an_exception(tmp_path):
    with pytest.raises(RunFailed):
        run(**(DERPP | {"lr": 1e30}), results_path=tmp_path)


def test_lists_and_numbers_of_seeds(tmp_path):
    result = run(**DERPP, seeds=[3, 1], class_order=[9, 8, 7, 6, 5, 4, 3, 2, 1, 0], results_path=tmp_path)
    assert list(result.metrics.index) == [3, 1]


def test_notebook_runs_from_any_folder(tmp_path):
    notebook = json.loads((ROOT / "scripts" / "train_and_plot.ipynb").read_text())
    code = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    environment = {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg", "PATH": "", "HOME": str(tmp_path)}
    environment["OMP_NUM_THREADS"] = "1"  # threads that wait for each other take minutes on a busy machine
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("results/runs/*/record.json"))) == 4
