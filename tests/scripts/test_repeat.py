"""`repeat` compares every number, and always trains again."""

import json
import shutil

import pytest
from conftest import plugins_forgotten, runner
from forked import Command, forked

from scripts.reproduce import main as reproduce
from tests.outcomes import change_record
from utils.studies.repeat import choose, comparison_line

TINY = ["--model", "er", "--norm", "adab2n", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4"]
OUTCOMES = ["--final_statistics", "--late_evaluations", "2"]  # which are no part of a run's name


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The folder of a finished run."""
    return runner(tmp_path_factory.mktemp("original"))(*TINY, "--debug_mode", *OUTCOMES).folder


@pytest.fixture
def records(original, tmp_path):
    shutil.copytree(original, tmp_path / "records" / original.name)
    return tmp_path / "records"


def repeat(records, *words: str) -> int:
    folders = ["--records", str(records), "--results_path", str(records.parent / "again")]
    return reproduce(["repeat", *folders, "--workers", "1", "--gpus", "none", *words])


def read(folder) -> dict:
    return json.loads((folder / "record.json").read_text())


def test_equal_numbers_are_identical_and_another_digit_differs(original, records, capsys):
    assert repeat(records) == 0
    line, count = capsys.readouterr().out.splitlines()
    assert line.startswith(f"identical  {original.name}: ")
    assert "conditions" not in line
    assert count == "1 of 1 identical"

    results = read(original)["results"]
    results["class_il"]["matrix"][-1][0] += 1e-9
    change_record(records / original.name, results=results)
    assert repeat(records, original.name) == 1
    line, count = capsys.readouterr().out.splitlines()
    assert line.startswith(f"differs    {original.name}: ")
    assert count == "0 of 1 identical"
    paths = sorted((records.parent / "again").glob("*/runs/*/record.json"))
    first, second = (read(path.parent) for path in paths)  # the second is no copy of the first
    assert first["results"] == second["results"]
    assert first["seconds"] != second["seconds"]


@pytest.mark.parametrize("condition", ["instruction_set", "device", "variables", "torch"])
def test_other_conditions_are_named_and_unknown_ones_are_not(original, condition):
    record = read(original)
    other = record | {"conditions": [record["conditions"][0] | {condition: "other"}]}
    assert f"{condition} {record['conditions'][0][condition]} instead of other" in comparison_line(other, record)
    del other["conditions"][0][condition]
    assert "conditions" not in comparison_line(other, record)


def test_what_only_the_repetition_has_measured_does_not_count(original):
    record = read(original)
    more = json.loads(json.dumps(record))
    more["results"]["class_il"]["later"] = {"kind": [1.0]}
    assert comparison_line(record, more).startswith("identical")
    assert comparison_line(more, record).startswith("differs")


PLUGIN = """
from models.sgd import Sgd
from utils.config.registry import MODELS

@MODELS.register("scaled-sgd", help="sgd with another loss")
class ScaledSgd(Sgd):
    def loss(self, batches, outputs, index):
        return {name: 1.0 * term for name, term in super().loss(batches, outputs, index).items()}
"""


def test_a_changed_loss_differs_and_a_missing_plugin_is_named(tmp_path, capsys):
    """The method is a plug-in, which a repetition loads only if the command names it."""
    folder, words = tmp_path / "mine", ["--debug_mode", *TINY[4:], "--results_path", str(tmp_path), "--non_verbose"]
    folder.mkdir()
    (folder / "scaled.py").write_text(PLUGIN)
    (ended,) = forked(tmp_path / "out", [Command(["--plugins", str(folder), "--model", "scaled-sgd", *words])])
    assert ended.code == 0, ended.stderr
    assert repeat(tmp_path / "runs") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--plugins {folder}" in line
    with plugins_forgotten():
        assert repeat(tmp_path / "runs", "--plugins", str(folder)) == 0
        (folder / "scaled.py").write_text(PLUGIN.replace("1.0", "1.5"))
        capsys.readouterr()
        assert repeat(tmp_path / "runs", "--plugins", str(folder)) == 1
    assert capsys.readouterr().out.startswith("differs")


def test_a_run_has_as_many_threads_as_before(original, records, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    change_record(records / original.name, conditions=[read(original)["conditions"][0] | {"num_threads": 2}])
    repeat(records)
    [path] = records.parent.glob("again/*/runs/*/record.json")
    assert [each["num_threads"] for each in read(path.parent)["conditions"]] == [2]


def test_a_choice_is_the_same_every_time():
    known = [f"run-{number}" for number in range(40)]
    assert choose(known, [], 10) == choose(known, [], 10)
    assert len(set(choose(known, [], 10))) == 10
    assert choose(known, ["run-7", "run-7"], 10) == ["run-7"]


def test_a_damaged_record_is_refused(original, records, capsys):
    path = records / original.name / "record.json"
    path.write_text(path.read_text().replace("finished", "Finished"))
    assert repeat(records) == 2
    assert str(path) in capsys.readouterr().err
