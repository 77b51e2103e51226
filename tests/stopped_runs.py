"""Runs that are stopped: what RUN leaves when nothing happens to it, and what the tests do to it."""

import contextlib
import io
import signal

import pytest
import torch
from conftest import runner

import utils.run.execution
from utils.run.checkpoints import verified_payload
from utils.run.observers import Observer

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


def numbers(finished):
    network = (finished.folder / "model.safetensors").read_bytes()
    return finished.record["results"], finished.record["steps"], finished.record["identity"], network


class Stop(Observer):
    """Sends a signal to this process after certain steps of the run."""

    def __init__(self, at, number=signal.SIGTERM):
        self.at, self.number = at, number

    def on_step(self, step):
        if step.index.step + 1 in self.at:
            assert signal.getsignal(self.number) not in (signal.SIG_DFL, signal.default_int_handler)
            signal.raise_signal(self.number)


def add_observers(patch, *observers):
    original = utils.run.execution.build_observers
    patch.setattr(utils.run.execution, "build_observers", lambda *a, **k: [*original(*a, **k), *observers])


@contextlib.contextmanager
def observers_added(*observers):
    with pytest.MonkeyPatch.context() as patch:
        add_observers(patch, *observers)
        yield


def stopped(results, *words, at, number=signal.SIGTERM):
    """The folder of a run that a signal stopped after that step."""
    with observers_added(Stop({at}, number)):
        finished = runner(results)(*words)
    assert finished.code == 128 + number
    assert finished.stderr.splitlines()[-1] == STOPPED.format(signal.Signals(number).name)
    (folder,) = results.glob("runs/*")
    assert steps_of(folder)[-1] == at
    return folder
