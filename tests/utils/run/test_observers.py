"""What people watch while a run goes on: lines without a terminal, and curves for TensorBoard."""

import re
import sys
from types import SimpleNamespace

import pytest
from conftest import call, goes_on, runner
from stopped_runs import observers_added, stopped

import utils.run.observers
from tests.models.cut_off import Killed, Steps
from utils.errors import UsageError
from utils.run.observers import Observer, Progress, TensorBoardRun
from utils.step import Step, StepIndex

RUN = ["--model", "er", "--dataset", "seq-digits", "--backbone", "mlp", "--debug_mode", "--num_threads", "1"]


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still; `clock.now` moves it."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(utils.run.observers.time, "monotonic", lambda: clock.now)
    return clock


# --- lines ------------------------------------------------------------------------------------------------------------


def test_without_a_terminal_there_is_a_line_per_task_and_the_runs_name(results):
    ended = call([*RUN, "--results_path", str(results)])
    run, folder, device, *lines = ended.stderr.splitlines()
    assert run == f"run {ended.folder.name}"
    assert folder == f"folder {ended.folder}"
    assert device.startswith("device cpu")
    assert len(lines) == 5
    matrix = ended.record["results"]["class_il"]["matrix"]
    for number, line in enumerate(lines):
        mean = sum(matrix[number][: number + 1]) / (number + 1)
        assert line.startswith(f"task {number + 1}/5, Class-IL {mean:.2f} %, Task-IL ")
        assert re.search(rf" %, step {3 * number + 3}/15, [\d.]+step/s, \d+:\d+ left$", line)


def test_in_between_there_is_one_line_a_minute_counted_from_the_last(clock, capsys):
    lines = Progress(2, bar=False)
    lines.on_start(1000, 0)
    for number in range(200):
        clock.now += 1
        lines.on_step(Step(StepIndex(0, number), {}))
        if number == 50:
            lines.on_log({"loss": 1.2345, "task": 0})
        if number == 149:
            lines.on_evaluation({"task": 0, "mean": {"domain_il": 50.0}})
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("task 1/2, loss 1.234, step 60/1000, ")
    assert second.startswith("task 1/2, loss 1.234, step 120/1000, ")
    assert third.startswith("task 1/2, Domain-IL 50.00 %, step 150/1000, ")


# --- TensorBoard ------------------------------------------------------------------------------------------------------


class FakeWriter:
    """In place of torch's, whose package is not a requirement."""

    made = []

    def __init__(self, folder, purge_step):
        self.folder, self.purge_step, self.scalars, self.closed = folder, purge_step, [], False
        self.made.append(self)

    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))

    def close(self):
        self.closed = True


@pytest.fixture
def writers(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=FakeWriter))
    monkeypatch.setattr(FakeWriter, "made", [])
    return FakeWriter.made


def test_curves_of_a_run(run_main, writers):
    ended = run_main(*RUN, "--tensorboard", "--log_every", "1", "--eval_every", "2")
    assert (ended.code, ended.stderr) == (0, "")
    (writer,) = writers
    assert writer.folder == str(ended.folder / "tensorboard")
    assert writer.closed
    losses = [step for name, _, step in writer.scalars if name == "loss"]
    assert losses == list(range(1, 16))
    points = {(name, step): value for name, value, step in writer.scalars}
    assert points["class_il/task_1", 15] == ended.record["results"]["class_il"]["matrix"][4][0]
    assert points["lr", 7] == 0.01
    assert ("task_il/mean", 9) in points
    assert ("class_il/while_training", 2) in points
    assert "tensorboard" not in ended.record["identity"]


def test_a_finished_run_says_that_it_writes_no_curves(run_main, writers):
    run_main(*RUN)
    *_, line = run_main(*RUN, "--tensorboard").stderr.splitlines()
    assert "--tensorboard ignored" in line
    run_main(*RUN, "--tensorboard", "--rerun")
    assert "ignored" not in run_main(*RUN, "--tensorboard").stderr
    assert len(writers) == 1


def test_a_resumed_run_takes_the_curves_up_where_its_checkpoint_is(results, writers):
    with observers_added(Steps(last=6)), pytest.raises(Killed):
        runner(results)(*RUN, "--tensorboard", "--checkpoint_every", "2")
    assert runner(results)(*RUN, "--tensorboard").stderr == goes_on(6)
    assert [writer.purge_step for writer in writers] == [1, 7]


def test_a_run_that_starts_afresh_removes_the_curves_of_another_attempt(tmp_path, writers):
    (tmp_path / "curves").mkdir()
    (tmp_path / "curves/events.1").touch()
    board = TensorBoardRun(tmp_path / "curves")
    board.on_start(10, 5)
    assert (tmp_path / "curves/events.1").exists()
    board.on_start(10, 0)
    assert not (tmp_path / "curves").exists()


def test_curves_that_cannot_be_written_do_not_end_a_run(run_main, writers, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FakeWriter, "add_scalar", full)
    ended = run_main(*RUN, "--tensorboard")
    assert ended.code == 0
    (line,) = ended.stderr.splitlines()
    assert line.startswith("warning: TensorBoard")


def test_where_tensorboard_is_missing_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(UsageError, match=r"^--tensorboard needs .*pip install tensorboard"):
        TensorBoardRun(tmp_path)


@pytest.mark.parametrize("hook", ["on_step", "on_end"])
def test_an_observer_that_raises_ends_the_command_with_its_traceback_and_loses_no_finished_run(run_main, hook):
    broken = Observer()
    setattr(broken, hook, lambda *_: {}["missing"])
    with observers_added(broken):
        ended = run_main(*RUN)
    assert (ended.code, ended.stdout) == (1, f"record: {ended.folder / 'record.json'}\n")
    assert ended.stderr.startswith("Traceback ")
    assert "KeyError" in ended.stderr.splitlines()[-1]
    assert ended.record["status"] == ("finished" if hook == "on_end" else "failed")
    assert run_main(*RUN).code == 0


def test_an_observer_that_raises_when_a_run_is_stopped_is_one_more_line(results):
    broken = Observer()
    broken.on_stop = lambda: {}["missing"]
    with observers_added(broken):
        stopped(results, *RUN, at=6)
