"""Records: a number is believed where and as it was written, and nowhere else."""

import copy
import json
import re
import shutil
from functools import reduce
from operator import getitem

import pytest
from conftest import ANSWERED, runner
from forked import refusal

from scripts.reproduce import main as reproduce
from tests.scripts.records import finish
from utils.files import write_json
from utils.run.records import BadRecord, read_record, seal_of
from utils.studies.plans import PLANS
from utils.studies.presets import SMOKE
from utils.studies.runs import Runs
from utils.studies.selection import Selection, required_runs

COMMAND = ["--model", "sgd", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4", "--debug_mode"]
DAMAGED, CHANGED, OTHER = "it is damaged", "its seal does not match", "it is of another run, {}"


def without(*names):
    return lambda record, other: {name: value for name, value in record.items() if name not in names}


def text_of(change):
    """A change of the record's text."""
    return lambda record, other: change(json.dumps(record))


def another_digit(text):
    match = re.search(r'"matrix": \[\[\d', text)
    place = match.end() - 1
    return text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]


def sealed_again(change):
    def of(record, other):
        record = change(record, other)
        return record | {"seal": seal_of(record)}

    return of


BAD = {  # what becomes of the record, given it and that of another seed; and the reason
    "another digit": (text_of(another_digit), CHANGED),
    "cut": (text_of(lambda text: text[: len(text) // 2]), DAMAGED),
    "older": (without("seal", "sources"), DAMAGED),
    "of another seed": (lambda record, other: other, OTHER),
    "renamed": (sealed_again(lambda record, other: without("seal")(other, None) | {"run": record["run"]}), OTHER),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A results folder with two seeds of one command; tests work on copies."""
    results = tmp_path_factory.mktemp("finished") / "results"
    return results, [runner(results)(*COMMAND, "--seed", seed) for seed in "01"]


def spoil(path, how, other=None):
    content = BAD[how][0](json.loads(path.read_text()), other)
    if isinstance(content, dict):
        write_json(path, content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("how", BAD)
def test_record_that_cannot_be_trusted_is_refused_and_replaced_by_a_rerun(finished, results, how):
    source, (first, other) = finished
    shutil.copytree(source, results)
    path = results / "runs" / first.folder.name / "record.json"
    spoil(path, how, other.record)
    reason = BAD[how][1].format(first.record["run"] if how == "renamed" else other.record["run"])
    before = path.read_bytes()
    for flags in ([], ["--accept_changed_code"], ["--dry_run"]):
        line = refusal(runner(results)(*COMMAND, *flags))
        assert all(word in line for word in (str(path), reason, "--rerun"))
    assert path.read_bytes() == before

    again = runner(results)(*COMMAND, "--rerun")
    assert (again.code, again.stderr) == (0, "")
    assert again.record["results"] == first.record["results"]
    answered = runner(results)(*COMMAND)
    assert ANSWERED.fullmatch(answered.stderr)
    assert answered.record == again.record


def test_folder_that_was_renamed_is_of_another_run(finished, results):
    """As a whole: the record fits its contents, and not its place."""
    source, (first, other) = finished
    shutil.copytree(other.folder, results / "runs" / first.folder.name)
    with pytest.raises(BadRecord, match=f"it is of another run, {other.folder.name}"):
        read_record(results / "runs" / first.folder.name / "record.json")
    assert f"of another run, {other.folder.name}; --rerun" in refusal(runner(results)(*COMMAND))
    assert read_record(source / "runs" / other.folder.name / "record.json") == other.record


@pytest.mark.parametrize(
    ("place", "value", "keyword"),
    [
        (("results", "class_il", "metrics", "faa"), 99.0, "faa"),
        (("results", "task_il", "metrics", "forgetting"), None, "forgetting"),
        (("results", "task_il", "matrix", -1, 0), 12.5, "task_il"),
        (("results", "task_il", "untrained", 0), 101.0, "0 to 100"),
        (("results", "class_il", "per_class", 0), 1.5, "class"),
        (("results", "class_il", "matrix"), [], "damaged"),
        (("results",), {}, "damaged"),
        (("results", "class_il", "metrics"), {}, "damaged"),
        (("date",), "yesterday", "damaged"),
        (("date",), None, "damaged"),
        (("environment",), {}, "damaged"),
        (("conditions",), [], "damaged"),
        (("conditions",), ["other"], "damaged"),
        (("conditions", 0, "num_threads"), "--rerun", "damaged"),
        (("steps_per_second",), "many", "damaged"),
        (("config", "lr"), 9.0, "lr"),
        (("config", "seed"), 7, "seed"),
        (("config", "nesterov"), True, "nesterov"),  # which is in no identity where it is false
        (("config", "norm"), "of-a-plug-in", "norm"),
    ],
)
def test_record_that_contradicts_itself_is_rejected_though_its_seal_fits(finished, tmp_path, place, value, keyword):
    record = copy.deepcopy(finished[1][0].record)
    reduce(getitem, place[:-1], record)[place[-1]] = value
    path = tmp_path / record["run"] / "record.json"
    path.parent.mkdir()
    write_json(path, record | {"seal": seal_of(record)})
    with pytest.raises(BadRecord, match=keyword):
        read_record(path)


# --- sweeps and reports -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A results folder with all records of Table 8; tests work on copies."""
    folder = tmp_path_factory.mktemp("table") / "results"
    required, _ = required_runs([PLANS["table8"]], Selection("fixed", Runs(SMOKE, str(folder)), (0,)))
    for run in required.values():
        finish(run, 50.0)
    return folder


@pytest.fixture
def spoiled(table, results):
    """(the folder, records in it that cannot be trusted, and why)."""
    shutil.copytree(table, results)
    paths = sorted(results.glob("runs/*/record.json"))
    spoil(paths[0], "older")
    shutil.copy(paths[2], paths[1])
    paths[3].parent.rename(paths[3].parent.with_name("renamed"))
    return results, {
        paths[0]: DAMAGED,
        paths[1]: OTHER.format(paths[2].parent.name),
        results / "runs/renamed/record.json": OTHER.format(paths[3].parent.name),
    }


def on_table8(command, folder, *words):
    return reproduce([command, "table8", "--preset", "smoke", "--seeds", "0", "--results_path", str(folder), *words])


def test_list_counts_only_records_that_can_be_trusted(spoiled, capsys):
    folder, reasons = spoiled
    assert on_table8("list", folder) == 0
    said = capsys.readouterr()
    (row,) = [line.split() for line in said.out.splitlines() if line.startswith("table8")]
    assert row[-7:-2] == ["6", "3", "0", "2", "1"]
    assert len(said.err.splitlines()) == len(reasons)
    for path, reason in reasons.items():
        assert f"{path} does not count: {reason}" in said.err


def test_sweep_names_records_of_other_threads_than_it_asks_for(table, capsys):
    assert on_table8("run", table, "--dry_run", "--num_threads", "2") == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "other conditions" in line]
    assert "num_threads 2 instead of 1" in line


def test_results_path_that_is_a_file_and_a_record_that_is_a_folder_are_one_line(table, results, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert on_table8("list", tmp_path / "file") == 2
    assert "--results_path" in capsys.readouterr().err
    shutil.copytree(table, results)
    path = min(results.glob("runs/*/record.json"))
    path.unlink()
    path.mkdir()
    assert on_table8("list", results) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path} does not count" in line
