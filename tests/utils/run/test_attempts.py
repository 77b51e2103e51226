"""Attempts at a run: a finished record stays until another is whole; what is left over is taken up or tidied away."""

import contextlib
import json
import signal
from types import SimpleNamespace

import pytest
import torch
from conftest import ANSWERED, goes_on, runner

import utils.run.execution
import utils.run.observers
from models.method import Method
from scripts.soak import outcome
from utils.files import OwnedLock
from utils.run.folder import RunFolder
from utils.run.observers import JsonLines, Observer
from utils.run.records import conditions

COMMAND = ["--model", "er", "--norm", "adab2n", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4"]
COMMAND += ["--debug_mode", "--buffer_size", "20", "--save_model", "--checkpoint_every", "2", "--log_every", "1"]
STEPS, STOPPED_AT = 15, 8
STOPPED = "stopped by SIGTERM; the same command goes on from the last checkpoint\n"
INTERRUPTED = f"note: a --rerun of it was interrupted at step {STOPPED_AT}; --rerun goes on with it\n"


class Killed(BaseException):
    """Ends a command where it stands, as SIGKILL would."""


class Watch(Observer):
    """Calls a function after every step, with its number counted from 1."""

    def __init__(self, look):
        self.look = look

    def on_step(self, step):
        self.look(step.place.step + 1)


@contextlib.contextmanager
def watched_by(look):
    original = utils.run.execution.build_observers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils.run.execution, "build_observers", lambda *a, **k: [*original(*a, **k), Watch(look)])
        yield


def stop(step):
    if step == STOPPED_AT:
        signal.raise_signal(signal.SIGTERM)


def stopped(results, *flags, said=STOPPED):
    """The folder of a run that a signal stopped."""
    with watched_by(stop):
        finished = runner(results)(*COMMAND, *flags)
    assert (finished.code, finished.stderr) == (143, said)
    (folder,) = results.glob("runs/*")
    return folder


@contextlib.contextmanager
def failing(at):
    """A step that raises."""
    original = Method.step

    def step(self, batch, place):
        if place.step == at:
            raise IndexError("no such thing")
        return original(self, batch, place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Method, "step", step)
        yield


def names(folder):
    return {path.name for path in folder.iterdir()}


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


WHOLE = {"config.json", "lock", "metrics.jsonl", "model.safetensors", "record.json"}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """What the command leaves when nothing happens to it."""
    results = tmp_path_factory.mktemp("straight")
    assert runner(results)(*COMMAND).code == 0
    return outcome(results)


def is_second_attempt(results, straight):
    """All as the first left it, but for the number and the flag."""
    found = outcome(results)
    assert found["record"].pop("attempt") == 2
    assert found["record"]["config"].pop("rerun")
    expected = straight["record"] | {"config": {**straight["record"]["config"]}}
    assert expected.pop("attempt") == 1
    assert not expected["config"].pop("rerun")
    return found == straight | {"record": expected}


# --- a finished record stays until another is whole -------------------------------------------------------------------


def test_finished_record_and_log_are_untouched_until_a_rerun_is_over(results, straight):
    first = runner(results)(*COMMAND)
    kept, seen = content(first.folder), []

    def look(step):
        seen.append(step)
        for name in ("record.json", "metrics.jsonl"):
            assert (first.folder / name).read_bytes() == kept[name]

    with watched_by(look):
        second = runner(results)(*COMMAND, "--rerun")
    assert (second.code, second.stderr) == (0, "")
    assert seen == [*range(1, STEPS + 1)]
    assert names(first.folder) == WHOLE
    assert second.record != first.record
    assert is_second_attempt(results, straight)


def test_interrupted_rerun_leaves_the_answer_and_is_taken_up_by_the_next(results, straight):
    first = runner(results)(*COMMAND)
    folder = stopped(results, "--rerun")
    kept = content(folder)
    answered = runner(results)(*COMMAND)
    assert (answered.code, answered.record, answered.stdout) == (0, first.record, first.stdout)
    note, more = answered.stderr.splitlines(keepends=True)
    assert ANSWERED.fullmatch(note)
    assert more == INTERRUPTED
    assert content(folder) == kept

    steps = []
    with watched_by(steps.append):
        second = runner(results)(*COMMAND, "--rerun")
    assert (second.code, second.stderr) == (0, goes_on(STOPPED_AT))
    assert steps == [*range(STOPPED_AT + 1, STEPS + 1)]
    assert names(folder) == WHOLE
    assert is_second_attempt(results, straight)
    assert ANSWERED.fullmatch(runner(results)(*COMMAND).stderr)


def test_rerun_does_not_go_on_from_the_attempt_that_it_is_a_rerun_of(results):
    """Interrupted without the flag, and killed before its checkpoints were gone: neither is an attempt of a rerun."""
    stopped(results)
    steps = []
    with watched_by(steps.append):
        assert runner(results)(*COMMAND, "--rerun").stderr == ""
    assert steps == [*range(1, STEPS + 1)]
    with killed_in("_clean_up"):
        runner(results)(*COMMAND, "--rerun")
    steps.clear()
    with watched_by(steps.append):
        finished = runner(results)(*COMMAND, "--rerun")
    assert (finished.stderr, finished.record["attempt"]) == ("", 3)
    assert steps == [*range(1, STEPS + 1)]


def test_failed_rerun_says_so_in_a_record_of_its_own(results, straight):
    first = runner(results)(*COMMAND)
    record, log = ((first.folder / name).read_bytes() for name in ("record.json", "metrics.jsonl"))
    with failing(at=10):
        failed = runner(results)(*COMMAND, "--rerun")
    path = first.folder / "record.rerun.json"
    assert failed.code == 1
    assert failed.stderr.startswith("Traceback ")  # of the method's own code, for its author
    assert failed.stderr.endswith(
        "\nerror: IndexError: no such thing\nnote: the record of the attempt before stays, and answers\n"
    )
    assert failed.stdout == f"record: {path}\n"
    assert (failed.record["status"], failed.record["attempt"]) == ("failed", 2)
    assert "results" not in failed.record
    assert (first.folder / "record.json").read_bytes() == record
    assert (first.folder / "metrics.jsonl").read_bytes() == log
    answered = runner(results)(*COMMAND)
    assert (answered.code, answered.record) == (0, first.record)

    second = runner(results)(*COMMAND, "--rerun")
    assert (second.code, second.stderr) == (0, goes_on(9))
    assert not path.exists()
    assert is_second_attempt(results, straight)


def test_failed_first_attempt_answers_nothing(results, straight):
    with failing(at=10):
        failed = runner(results)(*COMMAND)
    assert failed.stdout == f"record: {failed.folder / 'record.json'}\n"
    assert failed.record["status"] == "failed"
    assert runner(results)(*COMMAND).stderr == goes_on(9)
    assert outcome(results) == straight


def test_log_of_an_interrupted_rerun_does_not_outlive_the_record_that_it_was_to_replace(results, straight):
    first = runner(results)(*COMMAND)
    stopped(results, "--rerun")
    (first.folder / "record.json").write_text("damaged")
    again = runner(results)(*COMMAND, "--rerun")
    assert (again.code, again.stderr) == (0, "")
    assert names(first.folder) == WHOLE
    assert outcome(results)["log"] == straight["log"]


def test_interrupted_rerun_whose_record_is_gone_goes_on_with_its_own_log(results, straight):
    first = runner(results)(*COMMAND)
    stopped(results, "--rerun", "--log_every", "3")
    (first.folder / "record.json").unlink()
    again = runner(results)(*COMMAND, "--log_every", "3")
    assert (again.code, again.stderr) == (0, goes_on(STOPPED_AT))
    assert names(first.folder) == WHOLE
    assert [line["step"] for line in outcome(results)["log"] if line["event"] == "log"] == [*range(3, STEPS + 1, 3)]


# --- what a process that was killed left ------------------------------------------------------------------------------


@contextlib.contextmanager
def killed_in(name):
    """A part of the folder's work kills the command instead."""

    def kill(*_):
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, name, kill)
        with pytest.raises(Killed):
            yield


@pytest.mark.parametrize("flags", [[], ["--rerun"]], ids=["first", "rerun"])
def test_leftovers_of_a_run_killed_after_its_record_are_removed_by_the_answer(results, straight, flags):
    if flags:
        assert runner(results)(*COMMAND).code == 0
    with killed_in("_clean_up"):
        runner(results)(*COMMAND, *flags)
    (folder,) = results.glob("runs/*")
    (folder / ".record.json.123.tmp").write_text("half")
    assert {"checkpoint-000000014.pt", "checkpoint-000000015.pt"} < names(folder)
    assert ("metrics.rerun.jsonl" in names(folder)) == bool(flags)
    lock = OwnedLock(folder)
    assert ANSWERED.fullmatch(runner(results)(*COMMAND).stderr)
    assert "checkpoint-000000015.pt" in names(folder)  # whoever has the lock may be at it
    lock.release()
    answered = runner(results)(*COMMAND)
    assert answered.code == 0
    assert ANSWERED.fullmatch(answered.stderr)
    assert names(folder) == WHOLE
    assert is_second_attempt(results, straight) if flags else outcome(results) == straight


@pytest.mark.parametrize("end", ["killed", "failed"])
def test_rerun_that_ended_before_its_first_checkpoint_leaves_the_finished_log(results, straight, end):
    def kill(step):
        raise Killed

    first = runner(results)(*COMMAND)
    if end == "killed":
        with watched_by(kill), pytest.raises(Killed):
            runner(results)(*COMMAND, "--rerun")
    else:
        with failing(at=1):
            assert runner(results)(*COMMAND, "--rerun").code == 1
    kept = content(first.folder)
    assert ("metrics.rerun.jsonl" in kept, "record.rerun.json" in kept) == (True, end == "failed")
    answered = runner(results)(*COMMAND)
    assert ANSWERED.fullmatch(answered.stderr)
    assert answered.record == first.record
    assert (content(first.folder)) == kept
    assert outcome(results) | {"files": []} == straight | {"files": []}
    assert runner(results)(*COMMAND, "--rerun").stderr == ""
    assert is_second_attempt(results, straight)


# --- the log of a run that goes on ------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut", "cut within the first line", "deleted", "emptied"])
def test_lines_that_the_log_has_lost_are_told_and_leave_no_hole(results, straight, damage):
    folder = stopped(results)
    path = folder / "metrics.jsonl"
    text = path.read_bytes()
    kept = {"cut": 4.5, "cut within the first line": 0.5}.get(damage, 0)
    length = sum(map(len, text.splitlines(keepends=True)[: int(kept)]))
    path.write_bytes(text[: length + (20 if kept else 0)])
    if damage == "deleted":
        path.unlink()
    finished = runner(results)(*COMMAND)
    assert finished.code == 0
    assert finished.stderr == (
        f"{goes_on(STOPPED_AT)}warning: {path} has lost lines since the checkpoint; it goes on without them\n"
    )
    assert b"\0" not in path.read_bytes()
    before = len(text.splitlines())
    found = outcome(results)
    assert found["log"] == [*straight["log"][: int(kept)], *straight["log"][before:]]
    assert found["record"] == straight["record"]


def test_log_with_lines_after_the_checkpoint_loses_them_silently(results, straight):
    folder = stopped(results)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"event": "log", "step": 9}\n{"eve')
    assert runner(results)(*COMMAND).stderr == goes_on(STOPPED_AT)
    assert outcome(results) == straight


def test_seconds_of_a_resumed_log_go_on(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(utils.run.observers, "time", SimpleNamespace(monotonic=lambda: clock.now))
    path = tmp_path / "metrics.jsonl"
    first = JsonLines(path)
    first.on_start(10, 0)
    clock.now = 105.0
    first.on_log({"step": 1, "task": 0})
    clock.now = 106.0
    state = first.state_dict()
    clock.now = 5000.0  # another process, hours later
    second = JsonLines(path)
    second.load_state_dict(state)
    second.on_start(10, 1)
    clock.now = 5002.0
    second.on_log({"step": 2, "task": 0})
    assert [json.loads(line)["seconds"] for line in path.read_text().splitlines()] == [5.0, 8.0]


# --- conditions -------------------------------------------------------------------------------------------------------


def test_conditions_are_on_record(results):
    (found,) = runner(results)(*COMMAND, "--norm_impl", "fused").record["conditions"]
    assert found["device"].startswith("cpu (")
    assert (found["num_threads"], found["norm_impl"], found["torch"]) == (1, "fused", torch.__version__)
    (plain,) = runner(results)(*COMMAND, "--norm", "bn", "--seed", "1").record["conditions"]
    assert plain["norm_impl"] == "torch"


def test_what_auto_chose_is_on_record(results):
    """Whether there is a compiler or not is a condition too."""
    (auto,) = runner(results)(*COMMAND).record["conditions"]
    (named,) = runner(results)(*COMMAND, "--norm_impl", auto["norm_impl"], "--rerun").record["conditions"]
    assert auto == named
    assert auto["norm_impl"] in ("compiled", "fused")


def test_every_change_of_conditions_is_told_and_noted(results, monkeypatch):
    """One implementation, then another of another torch, then the first again, which is none."""
    assert runner(results)(*COMMAND[:-4], "--norm_impl", "fused", *COMMAND[-4:], "--rerun").code == 0
    stopped(results, "--rerun", "--norm_impl", "fused")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils.run.execution, "conditions", lambda net: conditions(net) | {"torch": "9.9"})
        with watched_by(lambda step: signal.raise_signal(signal.SIGTERM) if step == 11 else None):
            second = runner(results)(*COMMAND, "--rerun", "--norm_impl", "reference")
    assert second.stderr == (
        f"{goes_on(STOPPED_AT)}warning: goes on with norm_impl reference instead of fused, torch 9.9 instead of "
        f"{torch.__version__}: rounding differs from here on, which training amplifies to other accuracies, as another "
        f"seed would\n{STOPPED}"
    )
    third = runner(results)(*COMMAND, "--rerun", "--norm_impl", "fused")
    assert (third.code, third.stderr) == (0, goes_on(11))
    noted = [(one["norm_impl"], one["torch"]) for one in third.record["conditions"]]
    assert noted == [("fused", str(torch.__version__)), ("reference", "9.9")]
