"""`repeat` compares every number, and always trains again."""

import json
import shutil

import pytest
from conftest import runner

from scripts.reproduce import main as reproduce
from utils.run.records import seal_of
from utils.studies.repeat import choose, comparison_line

TINY = ["--model", "er", "--norm", "adab2n", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4"]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The folder of a finished run."""
    return runner(tmp_path_factory.mktemp("original"))(*TINY, "--debug_mode").folder


@pytest.fixture
def records(original, tmp_path):
    shutil.copytree(original, tmp_path / "records" / original.name)
    return tmp_path / "records"


def repeat(records, *words: str) -> int:
    folders = ["--records", str(records), "--results_path", str(records.parent / "again")]
    return reproduce(["repeat", *folders, "--workers", "1", "--gpus", "none", *words])


def read(folder) -> dict:
    return json.loads((folder / "record.json").read_text())


def change(records, name: str, **entries) -> None:
    """Change entries of a record and seal it again."""
    record = read(records / name) | entries
    (records / name / "record.json").write_text(json.dumps(record | {"seal": seal_of(record)}))


def test_equal_numbers_are_identical_and_another_digit_differs(original, records, capsys, monkeypatch):
    monkeypatch.setattr("utils.studies.repeat.time.strftime", lambda _: "first")
    assert repeat(records) == 0
    line, count = capsys.readouterr().out.splitlines()
    assert line.startswith(f"identical  {original.name}: ")
    assert "instruction set" not in line
    assert count == "1 of 1 identical"

    results = read(original)["results"]
    results["class_il"]["matrix"][-1][0] += 1e-9
    change(records, original.name, results=results)
    monkeypatch.setattr("utils.studies.repeat.time.strftime", lambda _: "second")
    assert repeat(records, original.name) == 1
    line, count = capsys.readouterr().out.splitlines()
    assert line.startswith(f"differs    {original.name}: ")
    assert count == "0 of 1 identical"
    paths = sorted((records.parent / "again").glob("*/runs/*/record.json"))
    first, second = (read(path.parent) for path in paths)  # the second is no copy of the first
    assert first["results"] == second["results"]
    assert first["seconds"] != second["seconds"]


def test_another_instruction_set_is_named(original):
    record = read(original)
    other = record | {"conditions": [record["conditions"][0] | {"device": "cpu (AVX3)"}]}
    assert "instruction set" in comparison_line(other, record)


def test_a_run_has_as_many_threads_as_before(original, records, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    change(records, original.name, conditions=[read(original)["conditions"][0] | {"num_threads": 2}])
    repeat(records)
    [path] = records.parent.glob("again/*/runs/*/record.json")
    assert [each["num_threads"] for each in read(path.parent)["conditions"]] == [2]


def test_a_choice_is_the_same_every_time():
    known = [f"run-{number}" for number in range(40)]
    assert choose(known, [], 10) == choose(known, [], 10)
    assert len(set(choose(known, [], 10))) == 10
    assert choose(known, ["run-7", "run-7"], 10) == ["run-7"]


@pytest.mark.parametrize(
    ("words", "keyword"), [(["er-bn"], "er-bn"), (["--count", "0"], "--count"), (["--records", "none"], "--records")]
)
def test_refusals_are_one_line(records, capsys, words, keyword):
    try:
        code = repeat(records, *words)
    except SystemExit as error:
        code = error.code
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert keyword in line


def test_a_damaged_record_is_refused(original, records, capsys):
    path = records / original.name / "record.json"
    path.write_text(path.read_text().replace("finished", "Finished"))
    assert repeat(records) == 2
    assert str(path) in capsys.readouterr().err
