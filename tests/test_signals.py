"""Processes that are stopped by signals and kills: always the same end."""

import multiprocessing
import os
import signal

import pytest
from conftest import goes_on, runner
from stopped_runs import RUN, STOPPED, Stop, add_observers, names, numbers, steps_of, stopped

import datasets.image_cache
import utils.run.training
from tests.datasets.image_trees import pixels, save
from tests.kills import kill_and_resume
from tests.outcomes import outcome
from utils.run.checkpoints import Checkpoints


def call_before(patch, module, name, action, nth=0):
    """Call `action` before the nth call of a function."""
    original, count = getattr(module, name), iter(range(1000))

    def changed(*arguments, **options):
        if next(count) == nth:
            action()
        return original(*arguments, **options)

    patch.setattr(module, name, changed)


# --- signals where nothing can be torn --------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "nth"), [(signal.SIGTERM, 0), (signal.SIGINT, 2), (signal.SIGTERM, 5)])
def test_signal_during_an_evaluation_stops_at_once(results, straight, number, nth):
    """Before the first step, in the middle, and after the last one."""
    with pytest.MonkeyPatch.context() as patch:
        call_before(patch, utils.run.training, "evaluate", lambda: signal.raise_signal(number), nth)
        ended = runner(results)(*RUN)
    assert (ended.code, ended.stderr) == (128 + number, STOPPED.format(number.name) + "\n")
    (folder,) = results.glob("runs/*")
    assert steps_of(folder) == [29 * k for k in range(max(1, nth - 1), nth + 1)]
    finished = runner(results)(*RUN)
    assert (finished.code, finished.stderr) == (0, goes_on(29 * nth) if nth else "")
    assert outcome(results) == straight


def test_every_signal_that_stops_a_run_leaves_a_checkpoint(results, straight):
    """A closed terminal, Slurm and a CPU limit, one after the other."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup` ignores
    for number, at in ((signal.SIGHUP, 40), (signal.SIGUSR1, 70), (signal.SIGXCPU, 100)):
        stopped(results, *RUN, at=at, number=number)
    signal.signal(signal.SIGHUP, before)
    assert runner(results)(*RUN).code == 0
    assert outcome(results) == straight


def test_signal_while_images_are_decoded_stops_at_once(results, tmp_path):
    for k, part in enumerate(("train/a", "train/b", "test/a", "test/b")):
        save(tmp_path / "images" / part / "0.png", pixels(k, side=8))
    words = ["--model", "sgd", "--dataset", "seq-folder", "--base_path", str(tmp_path / "images"), "--n_tasks", "2"]
    words += ["--image_size", "8", "--backbone", "mlp", "--hidden", "4"]
    with pytest.MonkeyPatch.context() as patch:
        call_before(patch, datasets.image_cache, "decode", lambda: signal.raise_signal(signal.SIGTERM))
        ended = runner(results)(*words)
    assert ended.code == 143
    (line,) = ended.stderr.splitlines()
    assert line.startswith("stopped by SIGTERM")
    assert runner(results)(*words).code == 0


# --- other processes --------------------------------------------------------------------------------------------------


def test_second_interrupt_quits_at_once(results, straight):
    words = [*RUN, "--checkpoint_every", "20"]  # steps 20, 29, 49, 58, and 60 because of the signal

    def command():
        add_observers(pytest.MonkeyPatch(), Stop({60}, signal.SIGINT))
        call_before(pytest.MonkeyPatch(), Checkpoints, "save", lambda: signal.raise_signal(signal.SIGINT), 4)
        os._exit(runner(results)(*words).code)

    process = multiprocessing.get_context("fork").Process(target=command)
    process.start()
    process.join()
    assert process.exitcode == 130
    (folder,) = results.glob("runs/*")
    assert steps_of(folder) == [49, 58]
    finished = runner(results)(*words)
    assert (finished.code, finished.stderr) == (0, goes_on(58))
    assert numbers(finished)[0] == straight["record"]["results"]
    assert numbers(finished)[3] == straight["network"]
    assert names(folder) == []


def test_kills_make_no_difference(tmp_path):
    options = ["--model", "derpp", "--norm", "adab2n", "--buffer_mode", "ring", "--buffer_size", "50"]
    kills, differing = kill_and_resume(options, kills=3, seed=0, folder=tmp_path)
    assert differing == []
    assert len(kills) == 3
