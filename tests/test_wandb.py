"""Weights & Biases: its real offline mode, read back from the file it writes, and the steps of a resumed run."""

import json
import struct
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from conftest import runner
from forked import WARM, Command, forked, refusal

from tests.outcomes import logged
from utils.run.observers import WandbRun

COMMAND = ["--model", "er", "--dataset", "seq-digits", "--num_filters", "4", "--debug_mode", "--log_every", "1"]
BLOCK = 32768


def stored_records(path):
    """The records of a `.wandb` file: a LevelDB log whose entries may be cut at the ends of blocks."""
    from wandb.proto import wandb_internal_pb2

    data, position, entry = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while position + 7 <= len(data):
        left = BLOCK - position % BLOCK
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        if position + 7 + length > len(data):
            return
        entry += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole entry, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(entry)
            entry = b""
            yield record


def finished_records(path):
    """All records, once the last is there: wandb's own process still writes when `finish` has returned."""
    for _ in range(100):
        records = list(stored_records(path)) if path.stat().st_size > 7 else []
        if kinds(records, "exit"):
            return records
        time.sleep(0.1)
    raise AssertionError(f"{path} has no end")


def values_of(items):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def kinds(records, kind):
    return [getattr(record, kind) for record in records if record.WhichOneof("record_type") == kind]


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """The same command twice, the second time with --rerun: (outcome, stored records) of each."""
    run = runner(tmp_path_factory.mktemp("wandb"))
    attempts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        for extra in ([], ["--rerun"]):
            finished = run(*COMMAND, "--wandb_project", "digits", "--notes", "a remark", *extra)
            (path,) = set(finished.folder.glob("wandb/offline-run-*/*.wandb")) - {path for path, *_ in attempts}
            attempts.append((path, finished, finished_records(path)))
    return [(finished, records) for _, finished, records in attempts]


def test_run_id_begins_with_the_runs_hash_and_a_rerun_gets_a_page_of_its_own(two_runs):
    pages = set()
    for finished, records in two_runs:
        assert (finished.code, finished.record["status"]) == (0, "finished")
        run = kinds(records, "run")[0]
        assert run.run_id.startswith(finished.record["run"].rsplit("-", 1)[-1])
        assert (run.project, run.display_name, run.notes) == ("digits", finished.record["run"], "a remark")
        pages.add(run.run_id)
    assert len(pages) == 2


@pytest.mark.parametrize("attempt", [0, 1])
def test_every_step_is_stored_once_with_its_values(two_runs, attempt):
    finished, records = two_runs[attempt]
    history = [values_of(event.item) for event in kinds(records, "history")]
    assert [row["_step"] for row in history] == list(range(1, 16))
    log = logged(finished.folder)
    assert [row["loss"] for row in history] == [line["loss"] for line in log if line["event"] == "log"]
    evaluated = [row for row in history if "class_il/mean" in row]
    assert [row["_step"] for row in evaluated] == [3, 6, 9, 12, 15]
    means = [line["mean"]["class_il"] for line in log if line["event"] == "evaluation"]
    assert [row["class_il/mean"] for row in evaluated] == pytest.approx(means)


def test_summary_holds_the_final_metrics(two_runs):
    finished, records = two_runs[0]
    summary = {}
    for update in kinds(records, "summary"):
        summary |= values_of(update.update)
    assert summary["task_il/faa"] == pytest.approx(finished.record["results"]["task_il"]["metrics"]["faa"])
    assert kinds(records, "exit")[0].exit_code == 0


class FakeWandb:
    """Keeps what it is given."""

    def __init__(self):
        self.started, self.sent, self.exit_codes = [], [], []

    def init(self, **settings):
        self.started.append(settings)
        last = self.sent[-1][0] if self.sent and settings["id"] == self.started[0]["id"] else 0
        page = SimpleNamespace(summary={}, step=last, finish=lambda exit_code: self.exit_codes.append(exit_code))
        page.log = lambda values, step: self.sent.append((step, values))
        return page


@pytest.fixture
def fake_wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


CONFIG = {"wandb_project": "p", "wandb_entity": "team", "notes": None, "lr": 0.1}


def log_event(step):
    return {"step": step, "task": 0, "epoch": 0, "loss": step / 10, "terms": {"labels": step / 10}, "lr": 0.1}


def evaluation_event(step):
    return {"step": step, "task": 0, "accuracy": {"class_il": [80.0, 40.0]}, "mean": {"class_il": 80.0}}


def page_of(folder, state=None):
    page = WandbRun(folder, CONFIG)
    page.load_state_dict(state or {})
    page.on_start(10, 0)
    return page


def test_resumed_run_keeps_its_page_and_sends_no_step_twice(fake_wandb, tmp_path):
    folder = tmp_path / "er-bn-seq-digits-0123456789ab"
    first = page_of(folder)
    for step in (1, 2, 3):
        first.on_log(log_event(step))
    second = page_of(folder, first.state_dict())
    for step in (2, 3):
        second.on_log(log_event(step))
    second.on_evaluation(evaluation_event(3))
    second.on_log(log_event(4))
    assert [step for step, _ in fake_wandb.sent] == [1, 2, 3, 3, 3, 4]  # the last of the page may be sent again
    assert fake_wandb.sent[4][1] == {"task": 0, "class_il/task_1": 80.0, "class_il/task_2": 40.0, "class_il/mean": 80.0}
    assert {settings["id"] for settings in fake_wandb.started} == {first.id}
    assert {settings["resume"] for settings in fake_wandb.started} == {"allow"}


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("failed", 1)])
def test_page_ends_with_the_status_of_the_run(fake_wandb, tmp_path, status, code):
    observer = page_of(tmp_path)
    observer.on_end({"status": status, "results": {"class_il": {"metrics": {"faa": 12.5}}}})
    assert fake_wandb.exit_codes == [code]
    assert observer.run.summary == {"class_il/faa": 12.5}


# --- what may go wrong --------------------------------------------------------------------------------------------


def test_page_that_cannot_begin_is_refused_in_one_line(tmp_path):
    """By the real package, in processes of their own: it reads its settings once."""
    results = tmp_path / "results"
    run = [*COMMAND, "--results_path", str(results), "--num_threads", "1", "--non_verbose", "--wandb_project", "p"]
    alone = {"HOME": str(tmp_path), "WANDB_API_KEY": "", "WANDB_MODE": "online"}
    circumstances = {
        "Input should be 'online', 'offline'": {"WANDB_MODE": "garbage"},
        "No API key configured": {},
        "API key must have 40+ characters": {"WANDB_API_KEY": "short"},
    }
    commands = [Command(run, env=alone | env) for env in circumstances.values()]
    for words, ended in zip(circumstances, forked(tmp_path / "out", commands, before=f"{WARM}, wandb"), strict=True):
        line = refusal(ended)
        assert line.startswith("error: --wandb_project")
        assert words in line
        assert "WANDB_MODE=offline" in line


def hang(*_, **__):
    threading.Event().wait()


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


ERRORS = {"No space left": OSError(28, "No space left"), "host unreachable": RuntimeError("host\nunreachable")}
FAILURES = {keyword: raising(error) for keyword, error in ERRORS.items()}
FAILURES |= {"ValueError": raising(ValueError()), "TimeoutError": hang}


@pytest.mark.parametrize("keyword", FAILURES)
def test_whatever_goes_wrong_at_its_start_is_refused(run_main, fake_wandb, monkeypatch, keyword):
    monkeypatch.setattr(fake_wandb, "init", FAILURES[keyword])
    monkeypatch.setattr("utils.run.observers.SECONDS_LIMIT", 0.2)
    line = refusal(run_main(*COMMAND, "--wandb_project", "p"))
    assert keyword in line
    assert "WANDB_MODE=offline" in line


@pytest.mark.parametrize(("name", "failure"), [("log", FAILURES["ValueError"]), ("log", hang), ("finish", hang)])
def test_page_that_fails_or_hangs_on_the_way_is_one_line_and_the_run_goes_on(
    run_main, fake_wandb, monkeypatch, name, failure
):
    start = fake_wandb.init

    def init(**settings):
        page = start(**settings)
        setattr(page, name, failure)
        return page

    monkeypatch.setattr(fake_wandb, "init", init)
    monkeypatch.setattr("utils.run.observers.SECONDS_LIMIT", 0.2)
    finished = run_main(*COMMAND, "--wandb_project", "p")
    assert (finished.code, finished.record["status"]) == (0, "finished")
    (line,) = finished.stderr.splitlines()
    assert line.startswith("warning: Weights & Biases")
