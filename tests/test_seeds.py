"""`--seeds`: the runs of several seeds, one after the other, as if each had been asked for alone."""

import json
import os
import re
import socket

import numpy as np
import pytest
from conftest import ANSWERED, call, goes_on, runner
from stopped_runs import Stop, observers_added

import utils.run.training
from utils.config.parser import parse
from utils.errors import RunFailed, UsageError
from utils.files import folder_lock

RUN = ["--model", "er", "--norm", "adab2n", "--dataset", "seq-digits", "--backbone", "mlp", "--debug_mode"]


def folders(results):
    return sorted(results.glob("runs/*"))


def records_named(ended):
    return re.findall(r"^record: (.*)$", ended.stdout, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "seeds"),
    [("0-4", (0, 1, 2, 3, 4)), ("0,1,2", (0, 1, 2)), ("7", (7,)), ("5-6,2", (5, 6, 2)), ("3-3", (3,))],
)
def test_ways_to_write_seeds(words, seeds):
    assert parse(["--seeds", words])["seeds"] == seeds


@pytest.mark.parametrize("words", ["", "a", "1,", "4-1", "1,1", "0-3,2", "2147483648", "-1", "0-20000", "1-2-3"])
def test_what_are_no_seeds(words):
    with pytest.raises(UsageError, match="--seeds"):
        parse([f"--seeds={words}"])


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """(where, how the command ended)."""
    results = tmp_path_factory.mktemp("three")
    return results, runner(results)(*RUN, "--seeds", "0-2")


def test_every_seed_is_the_run_that_seed_alone_gives(three, tmp_path):
    results, ended = three
    assert (ended.code, ended.stderr) == (0, "")
    assert len(folders(results)) == 3
    alone = runner(tmp_path)(*RUN, "--seed", "2")
    (same,) = [folder for folder in folders(results) if folder.name == alone.folder.name]
    record = json.loads((same / "record.json").read_text())
    assert record["results"] == alone.record["results"]
    assert record["config"] == alone.record["config"] | {"results_path": str(results)}
    assert "\n".join(alone.stdout.splitlines()[:-2]) in ended.stdout  # but for its speed


def test_the_end_has_mean_and_deviation_and_the_records(three):
    results, ended = three
    lines = ended.stdout.splitlines()
    assert lines[-3:] == [f"record: {folder / 'record.json'}" for folder in folders(results)]
    assert len(records_named(ended)) == 3
    all_results = [json.loads((folder / "record.json").read_text())["results"] for folder in folders(results)]
    start = lines.index(next(line for line in lines if line.startswith("mean ± std over 3 seeds, %")))
    table = [re.split(r"\s{2,}", line) for line in lines[start:-3]]
    assert table[0] == ["mean ± std over 3 seeds, % [debug]", "Class-IL", "Task-IL"]
    rows = {row[0]: row[1:] for row in table[1:]}
    for name, title in (("faa", "final average accuracy (FAA)"), ("bwt", "backward transfer (BWT)")):
        values = [[each[setting]["metrics"][name] for each in all_results] for setting in ("class_il", "task_il")]
        assert rows[title] == [f"{np.mean(v):.2f} ± {np.std(v, ddof=1):.2f}" for v in values]


def test_finished_seeds_are_answered_and_only_the_others_trained(three, monkeypatch):
    results, _ = three
    trained, original = [], utils.run.training.Training.run
    monkeypatch.setattr(
        utils.run.training.Training, "run", lambda self, *a: trained.append(self.config.seed) or original(self, *a)
    )
    ended = runner(results)(*RUN, "--seeds", "1,0,5")
    assert (ended.code, trained) == (0, [5])
    assert len(ANSWERED.findall(ended.stderr)) == 2
    assert [re.search(r"-s(\d)-", path)[1] for path in records_named(ended)] == ["1", "0", "5"]


def test_a_signal_stops_all_and_the_same_command_goes_on(three, tmp_path):
    _, straight = three
    with observers_added(Stop({8})):
        ended = runner(tmp_path)(*RUN, "--seeds", "0-2")
    assert (ended.code, ended.stdout) == (143, "")
    assert len(folders(tmp_path)) == 1
    again = runner(tmp_path)(*RUN, "--seeds", "0-2")
    assert (again.code, again.stderr) == (0, goes_on(8))
    assert again.stdout.split("mean ±")[1].split("record:")[0] == straight.stdout.split("mean ±")[1].split("record:")[0]


def test_a_seed_that_fails_is_reported_and_the_others_go_on(tmp_path, monkeypatch):
    original = utils.run.training.Training.run

    def failing(self, *arguments):
        if self.config.seed == 1:
            raise RunFailed("the loss became nan")
        return original(self, *arguments)

    monkeypatch.setattr(utils.run.training.Training, "run", failing)
    ended = runner(tmp_path)(*RUN, "--seeds", "0-2")
    assert (ended.code, ended.stderr) == (1, "error: the loss became nan\n")
    assert "mean ± std over 2 of 3 seeds, %" in ended.stdout
    assert len(records_named(ended)) == 3
    assert json.loads(folders(tmp_path)[1].joinpath("record.json").read_text())["status"] == "failed"


def test_a_seed_that_somebody_else_runs_is_left_to_them(three):
    results, _ = three
    folder = folders(results)[1]
    with folder_lock(folder):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        ended = runner(results)(*RUN, "--seeds", "0,1", "--rerun")
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert ended.code == 3
    (line,) = ended.stderr.splitlines()
    assert f"seed 1: {folder.name} is being run by process {os.getpid()} on {socket.gethostname()}" in line
    assert "mean ± std over 1 of 2 seeds, %" in ended.stdout
    assert re.search(r"\(FAA\) +\d+\.\d\d +\d+\.\d\d\n", ended.stdout.split("mean ±")[1])  # one has no deviation


def test_flags_and_files_give_one_seed_or_several(tmp_path):
    ended = call([*RUN, "--seed", "0", "--seeds", "1-2"])
    assert (ended.code, "--seeds" in ended.stderr) == (2, True)
    (tmp_path / "a.toml").write_text('model = "er"\nseed = 3')
    assert parse(["--config", str(tmp_path / "a.toml"), "--seeds", "1-2"]) == {"model": "er", "seeds": (1, 2)}
    (tmp_path / "a.toml").write_text('model = "er"\nseeds = "1-2"')
    assert parse(["--config", str(tmp_path / "a.toml"), "--seed", "3"]) == {"model": "er", "seed": 3}
