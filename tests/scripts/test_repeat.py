"""`repeat`: the same numbers are told from others, and nothing is compared with itself."""

import json
import shutil

import pytest
from conftest import runner

from scripts.reproduce.__main__ import main as reproduce
from scripts.reproduce.repeat import choose
from utils.run.records import seal_of

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
    return reproduce(["repeat", *words, "--records", str(records), "--results_path", str(records.parent / "again"),
                      "--workers", "1", "--gpus", "none"])  # fmt: skip


def change(records, name: str, **entries) -> None:
    """A record with a true seal that says something else."""
    path = records / name / "record.json"
    record = json.loads(path.read_text()) | entries
    path.write_text(json.dumps(record | {"seal": seal_of(record)}))


def test_the_same_numbers_are_identical_and_another_digit_is_told(original, records, capsys):
    assert repeat(records) == 0
    line, count = capsys.readouterr().out.splitlines()
    faa = json.loads((original / "record.json").read_text())["results"]["class_il"]["metrics"]["faa"]
    assert line.startswith(f"identical  {original.name}: class_il {faa}, task_il ")
    assert count == "1 of 1 identical"
    assert (records.parent / "again" / "runs" / original.name / "record.json").is_file()

    results = json.loads((original / "record.json").read_text())["results"]
    results["class_il"]["matrix"][-1][0] += 1e-9
    change(records, original.name, results=results)
    assert repeat(records, original.name) == 1
    line, count = capsys.readouterr().out.splitlines()
    assert line.startswith(f"differs    {original.name}: ")
    assert "1 threads, torch" in line
    assert count == "0 of 1 identical"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_has_as_many_threads_as_before(original, records, threads, monkeypatch):
    """Whatever the machine would give it."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(3 - threads))
    (before,) = json.loads((original / "record.json").read_text())["conditions"]
    change(records, original.name, conditions=[before | {"num_threads": threads}])
    repeat(records)
    (now,) = json.loads((records.parent / "again" / "runs" / original.name / "record.json").read_text())["conditions"]
    assert now["num_threads"] == threads


def test_a_run_without_its_data_is_not_identical(original, records, capsys):
    config = json.loads((original / "record.json").read_text())["config"]
    change(records, original.name, config=config | {"dataset": "seq-cifar10", "base_path": "data"})
    assert repeat(records, "--base_path", str(records / "none")) == 1
    assert capsys.readouterr().out == f"not run    {original.name}\n0 of 1 identical\n"


def test_a_choice_is_settled_by_its_seed():
    known = [f"run-{number}" for number in range(40)]
    first = choose(known, [], 10, 0)
    assert first == choose(known, [], 10, 0) != choose(known, [], 10, 1)
    assert len(set(first)) == 10
    assert set(choose(known[:3], [], 10, 0)) == set(known[:3])
    assert choose(known, ["run-7", "run-7"], 10, 0) == ["run-7"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["er-bn"], "no record of a finished run is called er-bn"),
        (["--count", "0"], "--count"),
        (["--records", "nowhere"], "nowhere has no record of a finished run; set --records"),
        (["--results_path", "RECORDS"], "the new records would be the old ones"),
    ],
)
def test_refusals_are_one_line(records, capsys, words, said):
    (records.parent / "runs").symlink_to(records)
    given = [str(records.parent) if word == "RECORDS" else word for word in words]
    try:
        code = reproduce(["repeat", "--records", str(records), *given])
    except SystemExit as error:
        code = error.code
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_damaged_record_is_refused(original, records, capsys):
    path = records / original.name / "record.json"
    path.write_text(path.read_text().replace("finished", "Finished"))
    assert repeat(records) == 2
    assert "its seal does not match" in capsys.readouterr().err
