"""Weights & Biases: its real offline mode, and what is sent to it."""

import sys
import threading
import time
from types import SimpleNamespace

import pytest
from forked import WARM, Command, forked, refusal

from tests.outcomes import logged
from utils.run.observers import WandbRun

COMMAND = ["--model", "er", "--dataset", "seq-digits", "--num_filters", "4", "--debug_mode", "--log_every", "1"]


def test_real_package_writes_a_page_for_every_attempt_in_its_offline_mode(run_main, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    pages = set()
    for extra in ([], ["--rerun"]):
        finished = run_main(*COMMAND, "--wandb_project", "digits", "--notes", "a remark", *extra)
        assert (finished.code, finished.stderr) == (0, "")
        (page,) = set(finished.folder.glob("wandb/offline-run-*/*.wandb")) - pages
        assert page.stem.startswith(f"run-{finished.record['run'].rsplit('-', 1)[-1]}")
        texts = ("digits", finished.record["run"], "a remark", "loss/", "class_il/mean", "task_il/faa")
        for _ in range(100):  # wandb's own process still writes when `finish` has returned
            if all(text.encode() in page.read_bytes() for text in texts):
                break
            time.sleep(0.1)
        assert [text for text in texts if text.encode() not in page.read_bytes()] == []
        pages.add(page)


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


def test_every_step_is_sent_with_its_values(run_main, fake_wandb):
    log = logged(run_main(*COMMAND, "--wandb_project", "p").folder)
    losses = [(event["step"], event["loss"]) for event in log if event["event"] == "log"]
    means = [(event["step"], event["mean"]["class_il"]) for event in log if event["event"] == "evaluation"]
    for name, expected in (("loss", losses), ("class_il/mean", means)):
        assert [(step, values[name]) for step, values in fake_wandb.sent if name in values] == expected != []


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
FAILURES |= {"ValueError": raising(ValueError()), "no answer": hang}


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
