"""Runs that are stopped and go on: by signals, kills, errors and locks, always to the same end as one that was not."""

import contextlib
import io
import json
import multiprocessing
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ANSWERED, call, goes_on, runner
from PIL import Image

import datasets.seq_folder
import main
import utils.run.execution
import utils.run.training
from models.method import Method
from scripts.soak import outcome
from utils.run.checkpoints import Checkpoints, verified_payload
from utils.run.observers import Observer, ProgressBar

REPOSITORY = Path(main.__file__).resolve().parent
DIGITS = ["--dataset", "seq-digits", "--save_model", "--log_every", "4"]
MLP = [*DIGITS, "--backbone", "mlp", "--hidden", "8"]
# Three steps a task.
SHORT = [*DIGITS, "--num_filters", "2", "--debug_mode", "--batch_size", "6"]
RUN = ["--model", "derpp", "--norm", "adab2n", "--buffer_size", "30", *MLP]
STOPPED = "stopped by {}; the same command goes on from the last checkpoint"


def names(folder):
    return sorted(path.name for path in folder.iterdir() if "checkpoint" in path.name)


def steps_of(folder):
    return [int(path.stem.split("-")[1]) for path in sorted(folder.glob("checkpoint-*.pt"))]


def newest_state(folder):
    payload = verified_payload(max(folder.glob("checkpoint-*.pt")))[1]
    return torch.load(io.BytesIO(payload), weights_only=True)


def log_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """What RUN leaves when nothing happens to it."""
    results = tmp_path_factory.mktemp("straight")
    assert runner(results)(*RUN).code == 0
    return outcome(results)


# --- in this process ------------------------------------------------------------------------------------------


class Stop(Observer):
    """Sends a signal to this process after certain steps of the run."""

    def __init__(self, at, number=signal.SIGTERM):
        self.at, self.number = at, number

    def on_step(self, step):
        if step.place.step + 1 in self.at:
            assert signal.getsignal(self.number) not in (signal.SIG_DFL, signal.default_int_handler)
            signal.raise_signal(self.number)


@contextlib.contextmanager
def watched_by(*observers):
    original = utils.run.execution.build_observers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils.run.execution, "build_observers", lambda *a, **k: [*original(*a, **k), *observers])
        yield


def stopped(results, *words, at, number=signal.SIGTERM):
    """The folder of a run that a signal stopped after that step."""
    with watched_by(Stop({at}, number)):
        finished = runner(results)(*words)
    assert finished.code == 128 + number
    assert finished.stderr.splitlines() == [STOPPED.format(signal.Signals(number).name)]
    (folder,) = results.glob("runs/*")
    assert steps_of(folder)[-1] == at
    return folder


REPLAY = [
    (model, norm, ["--buffer_mode", mode, "--buffer_size", "30"])
    for model in ("er", "er_ace", "derpp", "er_ace_lider", "derpp_lider")
    for norm in ("bn", "adab2n")
    for mode in ("reservoir", "ring")
]
PLAIN = [(model, norm, []) for model in ("sgd", "joint") for norm in ("bn", "adab2n")]
OFFLINE = ["--scenario", "offline", "--n_epochs", "2", "--lr_milestones", "1", "--optim_mom", "0.9", "--lr", "0.005"]
SPECIAL = [
    ("derpp", "adab2n", [*OFFLINE, "--lr_restart", "never"]),
    ("er_ace_lider", "bn", [*OFFLINE, "--lip_targets", "learned"]),
    ("derpp_lider", "adab2n", ["--lip_targets", "learned", "--dtype", "float64", "--optim_wd", "1e-3"]),
    ("er", "cn", ["--groups", "2", "--dtype", "float64"]),
    ("derpp", "adab2n", ["--fidelity", "paper", "--buffer_mode", "ring", "--buffer_size", "30", "--seed", "3"]),
    ("er", "gn", ["--groups", "2", "--validation", "0.2"]),
]


@pytest.mark.parametrize(
    ("model", "norm", "flags"), [*REPLAY, *PLAIN, *SPECIAL], ids=lambda v: "_".join(v) if isinstance(v, list) else v
)
def test_stopped_run_ends_as_if_it_had_not_been(tmp_path, model, norm, flags):
    convolutions = "lider" in model or flags in [case[2] for case in SPECIAL]
    small = [*SHORT, "--n_tasks", "2"] if convolutions else [*MLP, "--batch_size", "20"]
    words = ["--model", model, "--norm", norm, *flags, *small]
    assert runner(tmp_path / "straight")(*words).code == 0
    expected = outcome(tmp_path / "straight")
    dice = random.Random(zlib.crc32(" ".join(words).encode()))
    at = dice.randrange(1, expected["record"]["steps"])
    stopped(tmp_path / "stopped", *words, at=at)
    finished = runner(tmp_path / "stopped")(*words)
    assert (finished.code, finished.stderr) == (0, goes_on(at))
    ended = outcome(tmp_path / "stopped")
    assert [name for name in expected if ended[name] != expected[name]] == []


def test_run_may_be_stopped_after_every_step(tmp_path):
    words = ["--model", "derpp", "--norm", "adab2n", "--buffer_size", "30", *SHORT]
    assert runner(tmp_path / "straight")(*words).code == 0
    with watched_by(Stop(range(1, 16))):
        for step in range(1, 16):
            assert runner(tmp_path / "stopped")(*words).code == 143
            (folder,) = tmp_path.glob("stopped/runs/*")
            assert steps_of(folder)[-1] == step
        assert runner(tmp_path / "stopped")(*words).code == 0
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "straight")


def test_stopped_run_does_no_step_twice(results, straight, monkeypatch):
    stopped(results, *RUN, at=100)
    steps, original = [], Method.step
    monkeypatch.setattr(
        Method, "step", lambda self, batch, place: steps.append(place.step) or original(self, batch, place)
    )
    assert runner(results)(*RUN).code == 0
    assert steps == list(range(100, 145))
    assert outcome(results) == straight


def test_times_add_up_over_the_parts_of_a_run(results):
    folder = stopped(results, *RUN, at=100)
    state = newest_state(folder)
    assert 0 < state["training_seconds"] < state["wall_seconds"]
    finished = runner(results)(*RUN)
    assert finished.record["seconds"] > state["training_seconds"]
    assert finished.record["wall_seconds"] > state["wall_seconds"]
    assert finished.record["steps_per_second"] == pytest.approx(145 / finished.record["seconds"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_handlers_are_as_before_after_a_run(results, number):
    before = signal.getsignal(number)
    stopped(results, *RUN, at=5, number=number)
    assert signal.getsignal(number) is before
    assert runner(results)(*RUN).code == 0
    assert signal.getsignal(number) is before


# --- what changes nothing -------------------------------------------------------------------------------------


class Nosy(Observer):
    """Draws from every global generator, whenever it is told something."""

    def draw(self):
        torch.rand(3)
        np.random.rand(3)  # noqa: NPY002
        random.random()

    def on_step(self, step):
        self.draw()

    def on_log(self, event):
        self.draw()

    def on_evaluation(self, event):
        event["accuracy"].clear()
        self.draw()

    def on_start(self, total_steps, done_steps):
        torch.manual_seed(0)


def numbers(finished):
    network = (finished.folder / "model.safetensors").read_bytes()
    return finished.record["results"], finished.record["steps"], finished.record["identity"], network


@pytest.mark.parametrize(
    "flags",
    [
        ["--checkpoint_every", "1"],
        ["--checkpoint_every", "0.01s"],
        ["--log_every", "1000", "--notes", "a remark"],
    ],
    ids=" ".join,
)
def test_flags_about_output_change_no_number(run_main, straight, flags):
    finished = run_main(*RUN, *flags)
    assert finished.code == 0
    record = straight["record"]
    assert numbers(finished) == (record["results"], record["steps"], record["identity"], straight["network"])


def test_progress_bar_and_observers_change_no_number(results, straight, capfd):
    words = [*RUN, "--results_path", str(results), "--num_threads", "1"]
    with watched_by(ProgressBar(5), Nosy()):
        finished = call(words)
    assert finished.code == 0
    assert "145/145" in finished.stderr
    record = straight["record"]
    assert numbers(finished) == (record["results"], record["steps"], record["identity"], straight["network"])


def test_observers_may_change_over_a_stop(results, straight):
    with watched_by(ProgressBar(5), Nosy()):
        stopped_with = runner(results)
        with watched_by(Stop({50})):
            assert stopped_with(*RUN).code == 143
    assert runner(results)(*RUN).code == 0
    assert outcome(results) == straight


# --- threads --------------------------------------------------------------------------------------------------


def test_another_number_of_threads_is_told_and_noted(results):
    words = [*RUN, "--debug_mode"]
    stopped(results, *words, at=5)
    fixed = ["--results_path", str(results), "--non_verbose"]
    try:
        with watched_by(Stop({7})):
            second = call([*words, *fixed, "--num_threads", "2"])
    finally:
        torch.set_num_threads(1)
    assert second.code == 143
    assert second.stderr.splitlines(keepends=True) == [
        goes_on(5),
        "warning: goes on with num_threads 2 instead of 1: rounding differs from here on, which training amplifies to "
        "other accuracies, as another seed would\n",
        STOPPED.format("SIGTERM") + "\n",
    ]
    third = call([*words, *fixed, "--num_threads", "1"])
    assert (third.code, third.stderr) == (0, goes_on(7))
    assert [one["num_threads"] for one in third.record["conditions"]] == [1, 2]


def test_the_same_number_of_threads_is_no_word_worth(results, straight):
    stopped(results, *RUN, at=50)
    finished = runner(results)(*RUN)
    assert finished.stderr == goes_on(50)
    assert finished.record["conditions"] == straight["record"]["conditions"]
    assert [one["num_threads"] for one in finished.record["conditions"]] == [1]


# --- starting over --------------------------------------------------------------------------------------------


def test_rerun_forgets_what_was_saved(results, straight, monkeypatch):
    folder = stopped(results, *RUN, at=100)
    (folder / ".checkpoint-000000101.pt.7.tmp").write_bytes(b"half")
    seen, original = [], Method.step

    def step(self, batch, place):
        seen.append((place.step, names(folder)))
        return original(self, batch, place)

    monkeypatch.setattr(Method, "step", step)
    finished = runner(results)(*RUN, "--rerun")
    assert (finished.code, finished.stderr) == (0, "")
    assert seen[0] == (0, [])
    assert len(seen) == 145
    record = straight["record"]
    assert numbers(finished) == (record["results"], record["steps"], record["identity"], straight["network"])
    assert outcome(results)["log"] == straight["log"]
    assert names(folder) == []


def test_rerun_of_an_unfinished_run_that_is_stopped_goes_on_without_the_flag(results, straight):
    stopped(results, *RUN, at=50)
    folder = stopped(results, *RUN, "--rerun", at=100)
    assert not (folder / "record.json").exists()
    finished = runner(results)(*RUN)
    assert (finished.code, finished.stderr) == (0, goes_on(100))
    assert outcome(results) == straight


# --- errors ---------------------------------------------------------------------------------------------------


def test_diverged_run_leaves_a_record_and_no_bad_checkpoint(results):
    words = [*RUN, "--lr", "1e20", "--checkpoint_every", "1"]
    for again in (False, True):  # the second time from the checkpoint that the first left
        finished = runner(results)(*words)
        assert finished.code == 1
        *note, line = finished.stderr.splitlines()
        assert [f"{text}\n" for text in note] == [goes_on(steps_of(finished.folder)[-1])] * again
        assert line == f"error: {finished.record['reason']}"
        assert re.match(r"error: the loss became (nan|inf) at step \d+, task \d", line)
        assert finished.record["status"] == "failed"
        assert "results" not in finished.record
        assert np.isfinite(newest_state(finished.folder)["losses"]).all()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (IndexError("list index out of range"), "IndexError: list index out of range"),
        (RuntimeError("several\nlines of\n  text"), None),
        (MemoryError(), None),
    ],
    ids=["index", "lines", "memory"],
)
def test_unexpected_error_is_shown_with_its_traceback_and_in_the_record(results, straight, error, reason):
    original = Method.step

    def failing(self, batch, place):
        if place.step == 70:
            raise error
        return original(self, batch, place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Method, "step", failing)
        finished = runner(results)(*RUN)
    assert finished.code == 1
    *_, line = finished.stderr.splitlines()
    assert line.startswith("error: ")
    assert type(error).__name__ in line
    assert finished.record["status"] == "failed"
    assert finished.record["reason"] == (reason or finished.record["reason"])
    assert finished.stderr == f"{finished.record['traceback']}{line}\n"
    assert finished.record["traceback"].startswith("Traceback (most recent call last):")
    assert "in failing" in finished.record["traceback"]
    assert "Traceback" not in finished.stdout
    assert steps_of(finished.folder) == [29, 58]

    again = runner(results)(*RUN)
    assert (again.code, again.stderr) == (0, goes_on(58))
    assert outcome(results) == straight


# --- other processes ------------------------------------------------------------------------------------------


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
    def slow(*arguments):
        marker.touch()
        time.sleep(60)

    datasets.seq_folder.decode = slow


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
        self.context.set_forkserver_preload(["test_resume", "torch._dynamo", "torchvision", "sklearn.datasets"])

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
    """(exit code, what it said), if it ends in time."""
    start = time.monotonic()
    process.join(within)
    assert not process.is_alive(), "did not stop"
    assert time.monotonic() - start < within
    return process.exitcode, process.output.read_text()


@pytest.mark.parametrize(
    ("number", "code", "nth"), [(signal.SIGTERM, 143, 0), (signal.SIGINT, 130, 2), (signal.SIGTERM, 143, 5)]
)
def test_signal_during_an_evaluation_stops_at_once(processes, results, straight, number, code, nth):
    """Before the first step, in the middle, and after the last one."""
    process = processes.start(results, *RUN, change=slow_evaluation, nth=nth)
    wait_for(process.marker.exists, process)
    os.kill(process.pid, number)
    assert ended(process, within=5) == (code, STOPPED.format(number.name) + "\n")
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
    exitcode, said = ended(process, within=5)
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
    assert ended(process, within=5) == (130, "")
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
    assert not (folder / "owner.json").exists()


def test_terminated_command_saves_and_goes_on_to_the_same_end(tmp_path):
    results = tmp_path / "stopped"
    with subprocess.Popen(command_line(results, *RESNET), stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: logged(results) >= 5, process)
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=30)[1]
        assert time.monotonic() - start < 10
    check_stopped(process, results, signal.SIGTERM, said)
    assert runner(results)(*RESNET).code == 0
    assert runner(tmp_path / "straight")(*RESNET).code == 0
    assert outcome(results) == outcome(tmp_path / "straight")


def can_unshare():
    try:
        return (
            subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True).returncode == 0
        )
    except OSError:
        return False


def test_process_one_of_a_container_stops_too(results):
    if not can_unshare():
        pytest.skip("no name space for processes here")
    wrapped = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command_line(results, *RESNET)]
    with subprocess.Popen(wrapped, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: logged(results) >= 5, process)
        (inner,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert re.search(r"^NSpid:\s+\d+\s+1$", Path(f"/proc/{inner}/status").read_text(), flags=re.MULTILINE)
        os.kill(int(inner), signal.SIGTERM)
        said = process.communicate(timeout=30)[1]
    check_stopped(process, results, signal.SIGTERM, said)


# --- two processes on one folder ------------------------------------------------------------------------------


def refuse(results, process, *words):
    """The command is refused in favour of the process, which is named; its files stay as they are."""
    (folder,) = results.glob("runs/*")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    refused = runner(results)(*words)
    assert (refused.code, refused.stdout) == (3, "")
    assert refused.stderr.splitlines() == [
        f"error: {folder.name} is being run by process {process.pid} on {socket.gethostname()}"
    ]
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
    assert (folder / "owner.json").exists()  # it could not tidy up
    finished = runner(results)(*RUN)
    assert (finished.code, finished.stderr) == (0, goes_on(87))
    assert outcome(results) == straight


def test_runs_in_other_folders_do_not_wait_for_each_other(processes, results):
    first = processes.start(results, *RUN, change=slow_evaluation, nth=3)
    wait_for(first.marker.exists, first)
    assert runner(results)(*RUN, "--seed", "1").code == 0
    assert first.is_alive()


# --- kills ----------------------------------------------------------------------------------------------------


def test_ten_kills_make_no_difference():
    words = [sys.executable, "-m", "scripts.soak", "--kills", "10", "--seed", "144"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    last = done.stdout.splitlines()[-1]
    match = re.fullmatch(r"(\d+) kills in (\d+) runs \(.*\), 0 differences", last)
    assert match, (last, done.stderr)
    assert int(match[1]) >= 10
    assert int(match[2]) >= 4
    assert done.returncode == 0
    for aim in ("any moment", "inside a checkpoint", "at the end of a task"):
        assert int(re.search(rf"(\d+) {aim}", done.stdout)[1]) >= 1
