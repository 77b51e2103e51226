"""Whole commands that are cut off somewhere and given again: always to the same end as one that was not."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from conftest import goes_on, runner

from tests import stopped_runs
from tests.outcomes import outcome
from tests.stopped_runs import observers_added as watched_by
from utils.run.observers import Observer
from utils.run.training import Training

SMALL = ["--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "8", "--batch_size", "40", "--log_every", "3"]
SMALL += ["--checkpoint_every", "2", "--save_model"]


class Killed(BaseException):
    """Ends a command where it stands, as SIGKILL would: no handler of errors writes anything on its way."""


class Steps(Observer):
    """Keeps the numbers of the steps that were done; the command is killed in one of them, after its first iteration if
    it has several."""

    def __init__(self, last: int | None = None):
        self.done, self.last = [], last

    def on_step(self, step):
        if step.index.iteration == 0:
            self.done.append(step.index.step)
        if step.index.step == self.last:
            raise Killed


@contextmanager
def killed_in(owner, name: str, call: int):
    """The call with this number, counted from 1, of a function kills instead. Gives the list of calls."""
    original, calls = getattr(owner, name), []

    def counting(*arguments, **named):
        calls.append(arguments)
        if len(calls) == call:
            raise Killed
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, counting)
        yield calls


def killed(results: Path, *words: str) -> None:
    with pytest.raises(Killed):
        runner(results)(*words)


def finished(results: Path, *words: str, resumed: int = 0) -> dict:
    """All that the command leaves, without its times, if it goes on from that step."""
    ended = runner(results)(*words)
    assert (ended.code, ended.stderr) == (0, goes_on(resumed) if resumed else "")
    return outcome(results)


def newest_state(results: Path) -> dict:
    (folder,) = results.glob("runs/*")
    return stopped_runs.newest_state(folder)


class MemoryCheckpoints:
    """Checkpoints of a `Training` in memory, as plain data."""

    def __init__(self, every: int = 2):
        self.every, self.last_step, self.states = every, 0, []

    def due(self, step):
        return step - self.last_step >= self.every

    def save(self, step, state):
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        self.states.append((step, torch.load(file, weights_only=True)))
        self.last_step = step


def with_checkpoints(training: Training) -> Training:
    training.checkpoints = MemoryCheckpoints()
    return training


def assert_resumes_from_every_checkpoint(build: Callable[[], Training]) -> tuple[Training, list[tuple[int, Training]]]:
    """Resume from every checkpoint of a run; return the run, and the resumed ones with the steps they started from."""
    straight, resumed_runs = build(), []
    results = straight.run()["results"]
    for step, state in straight.checkpoints.states:
        resumed = build()
        resumed.checkpoints.last_step = step
        assert resumed.run(state)["results"] == results
        assert_same_state(dict(resumed.method.net.state_dict()), dict(straight.method.net.state_dict()))
        assert_same_state(resumed.method.state_dict(), straight.method.state_dict())
        resumed_runs.append((step, resumed))
    return straight, resumed_runs


def assert_same_state(state, expected) -> None:
    assert type(state) is type(expected)
    if isinstance(expected, dict):
        assert state.keys() == expected.keys()
        for name in expected:
            assert_same_state(state[name], expected[name])
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(state, expected, rtol=0, atol=0, equal_nan=True)
    else:
        assert state == expected


def assert_same(actual: dict, expected: dict) -> None:
    assert [name for name in expected if actual[name] != expected[name]] == []


def assert_a_cut_off_run_ends_the_same(folder: Path, *words: str, at: tuple[int, ...]) -> dict:
    """Killed in each of these steps: those since the last checkpoint are done twice. A task has at least eight, so the
    ninth is the first after the end of a task. Gives what the run that was not cut off left."""
    words = (*words, *SMALL)
    expected, resumed = finished(folder / "straight", *words), 0
    for step in at:
        with watched_by(steps := Steps(step)):
            killed(folder / "killed", *words)
        assert steps.done == list(range(resumed, step + 1))
        resumed = newest_state(folder / "killed")["cursor"]["step"]
        assert 0 < resumed <= step
    with watched_by(steps := Steps()):
        actual = finished(folder / "killed", *words, resumed=resumed)
    assert steps.done == list(range(resumed, expected["record"]["steps"]))
    assert_same(actual, expected)
    return expected
