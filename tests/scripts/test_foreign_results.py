"""A results folder is data: nothing that it names is executed, and no link in it is followed."""

import json
import shutil

import pytest
from conftest import call, runner

from scripts.figures import main as figures
from scripts.reproduce import main as reproduce
from scripts.results import main as results_command
from tests.outcomes import change_record
from tests.scripts.sweeps import Lines, local_sweep, tiny_runs
from utils.results import curves
from utils.studies.runs import Run
from utils.studies.sweep import log_tail, progress_text

COMMAND = ["--model", "sgd", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4", "--debug_mode"]
SMOKE = ["table8", "--preset", "smoke", "--seeds", "0"]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The folder of a finished run."""
    return runner(tmp_path_factory.mktemp("original"))(*COMMAND, "--save_model").folder


@pytest.fixture
def folder(original, results):
    return shutil.copytree(original, results / "runs" / original.name)


def test_plugins_that_a_results_folder_names_are_not_executed(folder, results, tmp_path, capsys):
    trap, mark = tmp_path / "trap", tmp_path / "executed"
    trap.mkdir()
    (trap / "trap.py").write_text(f"open({str(mark)!r}, 'w')")
    record = json.loads((folder / "record.json").read_text())
    config = record["config"] | {"plugins": [str(trap)]}
    change_record(folder, config=config)
    (folder / "config.json").write_text(json.dumps(config))
    (results / "reproduce.json").write_text(json.dumps({"plugins": [str(trap)]}))
    here = ["--results_path", str(results)]
    for command in ("list", "status", "claims", "report"):
        reproduce([command, *SMOKE, *here])
    results_command(here)
    figures(["run", str(folder)])
    call([*COMMAND, "--save_model", *here])
    call(["--eval_only", str(folder)])
    for name in ("record.json", "config.json"):
        call(["--config", str(folder / name), "--dry_run", *here])
    reproduce(["repeat", "--records", str(results / "runs"), "--results_path", str(tmp_path / "again")])
    assert not mark.exists()

    change_record(folder, config=config | {"norm": "theirs"})
    ended = call(["--config", str(folder / "record.json")])
    (line,) = ended.stderr.splitlines()
    assert ended.code == 2
    assert f"--plugins {trap}" in line


LINKS = ["metrics.jsonl", "lock", "output.log", ".record.json.1.tmp", "tensorboard", "."]


@pytest.mark.parametrize("name", LINKS)
def test_a_run_writes_through_no_link(folder, results, tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    if name == ".":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(precious)
    ended = runner(results)(*COMMAND, "--save_model", "--rerun")
    (line,) = ended.stderr.splitlines()
    assert ended.code == 2
    assert str(folder / name) in line
    assert precious.read_text() == "mine"


def test_a_sweep_neither_reads_nor_writes_through_a_link(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text('{"task": 0, "step": 7}')
    runs, (run, other, *_) = tiny_runs(tmp_path / "results", debug_mode=True)
    run.folder.mkdir(parents=True)
    for name in ("output.log", "metrics.jsonl", "failure.txt"):
        (run.folder / name).symlink_to(precious)
    assert progress_text(run) == log_tail(run) == ""
    outcome = local_sweep(runs, [run, other], display=Lines())
    assert "symbolic link" in outcome.failed[run.name]
    assert outcome.done == [other.name]
    assert precious.read_text() == '{"task": 0, "step": 7}'


def test_reports_follow_no_link(folder, results, tmp_path, capsys):
    precious = tmp_path / "precious"
    precious.write_text('{"event": "log", "step": 1, "task": 0, "epoch": 0, "loss": 7.0, "lr": 1.0, "seconds": 1.0}')
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").symlink_to(precious)
    assert curves(results).empty
    assert figures(["run", str(folder)]) == 0
    assert not (folder / "figures/loss.png").exists()
    for link, command, words in (
        (results / "reports/smoke/report.md", reproduce, ["report", *SMOKE, "--results_path", str(results)]),
        (folder / "figures/matrix.svg", figures, ["run", str(folder)]),
    ):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(precious)
        capsys.readouterr()
        assert command(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert str(link) in line
    assert "seconds" in precious.read_text()


@pytest.mark.parametrize("content", [b'{"event": "lo', b"[]\n1\n", b"\xff\xfe\n", b'{"event": "log"}\n', None])
def test_a_damaged_log_is_named_and_left_out(folder, results, content, capsys):
    path = folder / "metrics.jsonl"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert curves(results).empty
    assert figures(["run", str(folder)]) == 0
    assert not (folder / "figures/loss.png").exists()
    assert capsys.readouterr().err.count(str(path)) >= 2
    assert progress_text(Run(folder.name, {}, folder, 1)) == ""
