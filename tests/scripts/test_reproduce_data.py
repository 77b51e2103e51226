"""`run` checks the data of the runs that it is about to start: once each, before anything starts."""

import urllib.error
import urllib.request

import pytest

from scripts.reproduce import commands, runs
from scripts.reproduce.__main__ import main as reproduce_main
from scripts.reproduce.presets import SMOKE
from scripts.reproduce.runs import Runs
from utils.errors import UsageError


@pytest.fixture(autouse=True)
def no_network_and_no_start(monkeypatch):
    def refuse(*args, **kwargs):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(commands, "announce", lambda *_: None)  # what a run costs takes longer to tell than this file
    monkeypatch.setattr(runs, "try_out", lambda *_: None)  # and so does a trial of its speed
    monkeypatch.setattr(commands, "launch", lambda *_: pytest.fail("started"))


def problems(tmp_path, capsys, *ids):
    places = ["--base_path", str(tmp_path / "none"), "--results_path", str(tmp_path / "results")]
    code = reproduce_main(["run", *ids, "--seeds", "0", *places])
    assert code == 2
    assert not (tmp_path / "results").exists()
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]


def test_every_missing_data_set_is_one_line(tmp_path, capsys):
    lines = problems(tmp_path, capsys, "table2")
    assert [line.split(": ")[1] for line in lines] == ["seq-cifar10", "seq-cifar100", "seq-miniimg"]
    assert "cannot read or download CIFAR10" in lines[0]
    assert "no Mini-ImageNet in" in lines[2]


def test_only_data_of_what_is_to_be_run_are_looked_at(tmp_path, capsys):
    (line,) = problems(tmp_path, capsys, "table2:cifar100")
    assert line.startswith("error: seq-cifar100: ")


def test_dry_run_looks_at_no_data(tmp_path, capsys):
    places = ["--base_path", str(tmp_path / "none"), "--results_path", str(tmp_path / "results")]
    assert reproduce_main(["run", "table2", "--seeds", "0", "--dry-run", *places]) == 0
    assert "error" not in capsys.readouterr().err


def test_data_are_read_once(tmp_path, monkeypatch):
    """Whatever the number of runs, and of the times that `run` looks again what is left."""
    runs, checked = Runs(SMOKE, str(tmp_path)), set()
    options = {"norm": "bn", "dataset": "seq-digits", "results_path": str(tmp_path)}
    wanted = [runs.run_with({"model": model, "seed": seed, **options}) for model in ("sgd", "er") for seed in (0, 1)]
    read = []
    original = commands.Data.stream
    monkeypatch.setattr(commands.Data, "stream", lambda self, device: read.append(1) or original(self, device))
    assert commands.data_problems(wanted[:1], runs, checked) == []
    assert commands.data_problems(wanted, runs, checked) == []
    assert read == [1]


def test_damaged_data_are_a_problem_too(tmp_path, monkeypatch):
    def damaged(self, device):
        raise UsageError("x.png is damaged")

    monkeypatch.setattr(commands.Data, "stream", damaged)
    runs = Runs(SMOKE, str(tmp_path))
    run = runs.run_with({"model": "sgd", "norm": "bn", "dataset": "seq-digits", "results_path": str(tmp_path)})
    assert commands.data_problems([run], runs, set()) == ["seq-digits: x.png is damaged"]
