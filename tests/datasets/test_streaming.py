"""Runs on streamed images: the same for any number of workers and after any end, and in memory that does not grow."""

import itertools
import os
import re
import signal
import time
from pathlib import Path

import pytest
from conftest import goes_on, runner
from image_trees import pixels, save
from stopped_runs import observers_added

from tests.outcomes import outcome
from utils.run.observers import Observer

RUN = ["--model", "derpp", "--norm", "adab2n", "--dataset", "dom-folder", "--image_size", "28", "--backbone", "mlp",
       "--hidden", "8", "--batch_size", "4", "--buffer_size", "10", "--save_model", "--log_every", "3"]  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Two domains of two classes with 18 images each, of 40x50 pixels: seven steps a task."""
    root = tmp_path_factory.mktemp("images")
    for place in itertools.product(range(2), range(2), range(18)):
        domain, label, k = place
        save(root / f"domain{domain}" / f"class{label}" / f"{k}.jpg", pixels(place, 50)[:40])
    return root


def words(tree, workers):
    return [*RUN, "--base_path", str(tree), "--num_workers", str(workers)]


def left(results):
    """What must not depend on anything."""
    kept = outcome(results)
    record = {name: kept["record"][name] for name in ("results", "steps", "run", "data", "identity")}
    return record, kept["log"], kept["network"]


@pytest.fixture(scope="module")
def straight(tree, tmp_path_factory):
    """What the run leaves without workers when nothing happens to it."""
    results = tmp_path_factory.mktemp("straight")
    finished = runner(results)(*words(tree, 0))
    assert (finished.code, finished.stderr) == (0, "")
    assert finished.record["steps"] == 14
    return left(results)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_do_not_depend_on_the_number_of_workers(tree, straight, results, run_main, workers):
    finished = run_main(*words(tree, workers))
    assert (finished.code, finished.stderr) == (0, "")
    assert left(results) == straight


class Signal(Observer):
    """Sends this process a signal in the middle of the second task's epoch."""

    def __init__(self, number, workers: Path):
        self.number, self.workers = number, workers

    def on_step(self, step):
        if step.index.step == 9:
            self.workers.write_text(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text())
            os.kill(os.getpid(), self.number)


def _run(results, argv, number, workers):
    try:
        with observers_added(Signal(number, workers)):
            os._exit(runner(results)(*argv).code)
    finally:
        os._exit(99)


def gone(pids, seconds) -> bool:
    """Whether the processes end."""
    deadline = time.monotonic() + seconds
    while any(_lives(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(_lives(pid) for pid in pids)


def _lives(pid: int) -> bool:
    try:
        return re.search(r"\) (\w)", Path(f"/proc/{pid}/stat").read_text())[1] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("number", "code", "step"),
    [(signal.SIGKILL, -signal.SIGKILL, 9), (signal.SIGTERM, 128 + signal.SIGTERM, 10)],
    ids=["killed", "stopped"],
)
def test_run_that_ended_within_an_epoch_goes_on_to_the_same_end(tree, straight, results, tmp_path, number, code, step):
    argv = [*words(tree, 2), "--checkpoint_every", "2"]
    child = os.fork()  # by hand: multiprocessing waits until no process has what it shares with its own
    if child == 0:
        _run(results, argv, number, tmp_path / "workers")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
    workers = [int(pid) for pid in (tmp_path / "workers").read_text().split()]
    assert len(workers) == 2
    finished = runner(results)(*words(tree, 1))  # at once: no worker may hold the run's lock
    assert (finished.code, finished.stderr) == (0, goes_on(step))
    assert left(results) == straight
    assert gone(workers, seconds=20)  # their watchdog looks every five
