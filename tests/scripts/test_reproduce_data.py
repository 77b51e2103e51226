"""`run` checks the data of the runs that it is about to start: once each, before anything starts."""

import pytest

from scripts.reproduce import main as reproduce
from tests.scripts.sweeps import tiny_runs
from utils.studies import subcommands


@pytest.fixture(autouse=True)
def no_start(no_network, monkeypatch):
    monkeypatch.setattr(subcommands, "launch", lambda *_: pytest.fail("started"))


@pytest.mark.parametrize(
    ("id", "names"), [("table2", ["seq-cifar10", "seq-cifar100", "seq-miniimg"]), ("table2:cifar100", ["seq-cifar100"])]
)
def test_every_missing_data_set_is_one_line_and_a_dry_run_looks_at_none(tmp_path, capsys, id, names):
    words = ["--seeds", "0", "--base_path", str(tmp_path / "none"), "--results_path", str(tmp_path / "results")]
    assert reproduce(["run", id, *words]) == 2
    assert not (tmp_path / "results").exists()
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert [line.split(": ")[1] for line in lines] == names
    assert reproduce(["run", id, *words, "--dry-run"]) == 0
    assert "error" not in capsys.readouterr().err


def test_data_are_read_once(tmp_path, monkeypatch):
    runs, wanted = tiny_runs(tmp_path)
    builders = []
    monkeypatch.setattr(subcommands.StreamBuilder, "stream", lambda self, device: builders.append(self))
    assert subcommands.data_problems(wanted, runs) == []
    assert len(builders) == 1
