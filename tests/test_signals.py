"""Processes that are stopped by signals and kills, and two that want one folder: always the same end."""

import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ANSWERED, goes_on, runner
from PIL import Image
from stopped_runs import DIGITS, REPOSITORY, RUN, STOPPED, Stop, log_of, names, numbers, steps_of, undisturbed

import datasets.image_cache
import main
import utils.run.execution
import utils.run.training
from tests.kills import combinations, kill_and_resume
from tests.outcomes import outcome
from utils.run.checkpoints import Checkpoints


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("straight"))


# --- signals --------------------------------------------------------------------------------------------------


def slow_evaluation(marker, nth):
    """The nth evaluation says that it has begun, and takes until a file `go` appears."""
    original, count = utils.run.training.evaluate, iter(range(1000))

    def slow(*arguments):
        if next(count) == nth:
            marker.touch()
            while not marker.with_name("go").exists():
                time.sleep(0.01)
        return original(*arguments)

    utils.run.training.evaluate = slow


def slow_decoding(marker, _):
    def slow(*arguments, **named):
        marker.touch()
        time.sleep(60)

    datasets.image_cache.decode = slow


def slow_saving(marker, _):
    """Every checkpoint takes a minute, once a signal has come."""
    original = Checkpoints.save

    def slow(self, step, state):
        if step == 60:
            marker.touch()
            time.sleep(60)
        original(self, step, state)

    Checkpoints.save = slow


def child(argv, output, change, marker, nth):
    """A command in a process of its own, with one part of it changed."""
    if change:
        change(marker, nth)
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    code = main.main(argv)
    sys.stdout.flush()
    os._exit(code)


class Processes:
    """Starts commands from a server that has everything imported; ends all that a test left."""

    def __init__(self, folder):
        self.folder, self.started = folder, []
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["test_signals", "torch._dynamo", "torchvision", "sklearn.datasets"])

    def start(self, results, *words, change=None, nth=0):
        number = len(self.started)
        argv = [*words, "--results_path", str(results), "--num_threads", "1", "--non_verbose"]
        output, marker = self.folder / f"output{number}", self.folder / f"marker{number}"
        process = self.context.Process(target=child, args=(argv, output, change, marker, nth))
        with pytest.MonkeyPatch.context() as patch:  # for the server, which does not know pytest's paths
            patch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), str(Path(__file__).parent)]))
            process.start()
        process.output, process.marker = output, marker
        self.started.append(process)
        return process


@pytest.fixture
def processes(tmp_path):
    processes = Processes(tmp_path)
    yield processes
    for process in processes.started:
        if process.is_alive():
            process.kill()
        process.join()


def wait_for(condition, process, seconds=60):
    """Until the condition holds, in a living process."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.is_alive() if hasattr(process, "is_alive") else process.poll() is None, "ended too early"
        assert time.monotonic() < end, "took too long"
        time.sleep(0.005)


def ended(process, *, within):
    """(exit code, what it said), if it ends at all."""
    process.join(within)
    assert not process.is_alive(), "did not stop"
    return process.exitcode, process.output.read_text()


@pytest.mark.parametrize(
    ("number", "code", "nth"), [(signal.SIGTERM, 143, 0), (signal.SIGINT, 130, 2), (signal.SIGTERM, 143, 5)]
)
def test_signal_during_an_evaluation_stops_at_once(processes, results, straight, number, code, nth):
    """Before the first step, in the middle, and after the last one."""
    process = processes.start(results, *RUN, change=slow_evaluation, nth=nth)
    wait_for(process.marker.exists, process)
    os.kill(process.pid, number)
    assert ended(process, within=50) == (code, STOPPED.format(number.name) + "\n")
    (folder,) = results.glob("runs/*")
    assert steps_of(folder) == [29 * k for k in range(max(1, nth - 1), nth + 1)]
    finished = runner(results)(*RUN)
    assert (finished.code, finished.stderr) == (0, goes_on(29 * nth) if nth else "")
    assert outcome(results) == straight


@pytest.fixture
def images(tmp_path):
    """A small tree of noise images: arguments for `seq-folder`."""
    dice = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 2)):
        for label in "ab":
            folder = tmp_path / "images" / part / label
            folder.mkdir(parents=True)
            for k in range(count):
                Image.fromarray(dice.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{k}.png")
    where = ["--dataset", "seq-folder", "--base_path", str(tmp_path / "images")]
    return [*where, "--n_tasks", "2", "--image_size", "8", "--backbone", "mlp", "--hidden", "4"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_while_images_are_decoded_stops_at_once(processes, results, images, number, code):
    process = processes.start(results, "--model", "sgd", *images, change=slow_decoding)
    wait_for(process.marker.exists, process)
    os.kill(process.pid, number)
    exitcode, said = ended(process, within=50)
    assert exitcode == code
    (line,) = said.splitlines()
    assert line.startswith(f"stopped by {number.name}")
    assert runner(results)("--model", "sgd", *images).code == 0


def test_second_interrupt_quits_at_once(processes, results, straight):
    words = [*RUN, "--checkpoint_every", "20"]  # steps 20, 29, 49, 58, and 60 because of the signal
    process = processes.start(results, *words, change=interrupt_itself)
    wait_for(process.marker.exists, process)
    time.sleep(0.2)
    assert process.is_alive()  # still busy with the checkpoint, in spite of the first
    os.kill(process.pid, signal.SIGINT)
    assert ended(process, within=50) == (130, "")
    (folder,) = results.glob("runs/*")
    assert steps_of(folder) == [49, 58]
    finished = runner(results)(*words)
    assert (finished.code, finished.stderr) == (0, goes_on(58))
    assert numbers(finished)[0] == straight["record"]["results"]
    assert numbers(finished)[3] == straight["network"]
    assert names(folder) == []


def interrupt_itself(marker, _):
    """A first SIGINT after step 60, whose checkpoint then takes a minute."""
    slow_saving(marker, _)
    original = utils.run.execution.build_observers
    utils.run.execution.build_observers = lambda *a, **k: [*original(*a, **k), Stop({60}, signal.SIGINT)]


RESNET = ["--model", "derpp", "--norm", "adab2n", "--buffer_size", "30", "--num_filters", "2", *DIGITS[:-1], "1"]
RESNET += ["--batch_size", "16"]


def command_line(results, *words):
    fixed = ["--results_path", str(results), "--num_threads", "1", "--non_verbose"]
    return [sys.executable, str(REPOSITORY / "main.py"), *words, *fixed]


def logged(results):
    """Steps in the log so far."""
    return sum(path.read_bytes().count(b"\n") for path in results.glob("runs/*/metrics.jsonl"))


def check_stopped(process, results, number, said):
    assert process.returncode == 128 + number
    assert said.splitlines() == [STOPPED.format(signal.Signals(number).name)]
    (folder,) = results.glob("runs/*")
    last = [line["step"] for line in log_of(folder)][-1]
    assert steps_of(folder)[-1] == last  # saved where it stopped, not at some earlier time
    assert (folder / "lock").read_text() == ""


def test_terminated_command_saves_and_goes_on_to_the_same_end(tmp_path):
    results = tmp_path / "stopped"
    with subprocess.Popen(command_line(results, *RESNET), stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: logged(results) >= 5, process)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    check_stopped(process, results, signal.SIGTERM, said)
    assert runner(results)(*RESNET).code == 0
    assert runner(tmp_path / "straight")(*RESNET).code == 0
    assert outcome(results) == outcome(tmp_path / "straight")


# --- two processes on one folder ------------------------------------------------------------------------------


def refuse(results, process, *words):
    """The command is refused in favour of the process, which is named; its files stay as they are."""
    (folder,) = results.glob("runs/*")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    refused = runner(results)(*words)
    assert (refused.code, refused.stdout) == (3, "")
    (line,) = refused.stderr.splitlines()
    assert f"process {process.pid} on {socket.gethostname()}" in line
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert process.is_alive()


def test_second_process_is_refused_while_the_first_goes_on(processes, results, straight):
    first = processes.start(results, *RUN, change=slow_evaluation, nth=3)
    wait_for(first.marker.exists, first)
    refuse(results, first, *RUN)
    refuse(results, first, *RUN, "--rerun")
    first.marker.with_name("go").touch()
    code, said = ended(first, within=30)
    assert (code, said.splitlines()[-1]) == (0, f"record: {next(results.glob('runs/*'))}/record.json")
    assert outcome(results) == straight
    answered = runner(results)(*RUN)
    assert answered.code == 0
    assert ANSWERED.fullmatch(answered.stderr)


def test_lock_of_a_killed_process_is_free(processes, results, straight):
    first = processes.start(results, *RUN, change=slow_evaluation, nth=3)
    wait_for(first.marker.exists, first)
    refuse(results, first, *RUN)
    first.kill()
    first.join()
    (folder,) = results.glob("runs/*")
    assert (folder / "lock").read_text()  # it could not tidy up
    finished = runner(results)(*RUN)
    assert (finished.code, finished.stderr) == (0, goes_on(87))
    assert outcome(results) == straight


# --- kills ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", random.Random(144).sample(combinations(), 2), ids=" ".join)
def test_five_kills_make_no_difference(options, tmp_path):
    kills, differing = kill_and_resume(options, kills=5, seed=0, folder=tmp_path)
    assert differing == []
    assert len(kills) == 5
