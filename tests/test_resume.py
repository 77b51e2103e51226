"""Runs that are stopped and go on, by signals and errors, always to the same end as one that was not."""

import random
import re
import signal
import zlib

import numpy as np
import pytest
import torch
from conftest import call, goes_on, runner
from stopped_runs import MLP, RUN, SHORT, Stop, newest_state, numbers, observers_added, steps_of, stopped

from tests.outcomes import outcome
from utils.run.observers import Observer, Progress

RING = ["--buffer_mode", "ring", "--buffer_size", "30"]
BALANCED = ["--buffer_mode", "class_balanced", "--buffer_size", "33"]
OFFLINE = ["--scenario", "offline", "--n_epochs", "2", "--lr_milestones", "1", "--optim_mom", "0.9", "--lr", "0.005"]
# Every method is stopped in tests/models/test_contract.py; here is what they do not differ in.
PERCEPTRON = [
    ("er", "adab2n", ["--optimizer", "adam", "--lr", "0.01"]),
    ("er_ace", "bn", RING),
    ("derpp", "bn", ["--classifier", "seen", "--hold_out", "0.05"]),
    ("derpp", "adab2n", RING),
    ("er", "bn", BALANCED),
    ("er_ace", "adab2n", BALANCED),
    ("derpp", "bn", [*BALANCED, "--balance_replay"]),
    ("derpp", "adab2n", ["--optimizer", "adamw", "--lr", "0.01", "--optim_wd", "0.1", "--n_iters", "11"]),
    ("icarl", "adab2n", ["--optim_mom", "0.9", "--nesterov", "--drop_last", "--n_iters", "9"]),
    ("sgd", "adab2n", ["--drop_last", "--stop_after", "3"]),
    ("joint", "adab2n", []),
]
CONVOLUTIONS = [
    ("derpp", "adab2n", [*OFFLINE, "--lr_restart", "never"]),
    ("er_ace_lider", "bn", [*OFFLINE, "--lip_targets", "learned"]),
    ("derpp_lider", "adab2n", ["--lip_targets", "learned", "--dtype", "float64", "--optim_wd", "1e-3"]),
    ("er", "cn", ["--groups", "2", "--dtype", "float64"]),
    ("derpp", "adab2n", ["--fidelity", "paper", *RING, "--seed", "3"]),
    ("er", "gn", ["--groups", "2", "--validation", "0.2"]),
]
COMMANDS = [["--model", m, "--norm", n, *flags, *MLP, "--batch_size", "20"] for m, n, flags in PERCEPTRON]
COMMANDS += [["--model", m, "--norm", n, *flags, *SHORT, "--n_tasks", "2"] for m, n, flags in CONVOLUTIONS]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: "_".join(words[1:9]))
def test_stopped_run_ends_as_if_it_had_not_been(tmp_path, words):
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
    with observers_added(Stop(range(1, 16))):
        for step in range(1, 16):
            assert runner(tmp_path / "stopped")(*words).code == 143
            (folder,) = tmp_path.glob("stopped/runs/*")
            assert steps_of(folder)[-1] == step
        assert runner(tmp_path / "stopped")(*words).code == 0
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "straight")


def test_times_add_up_over_the_parts_of_a_run(results):
    folder = stopped(results, *RUN, at=100)
    state = newest_state(folder)
    assert 0 < state["training_seconds"] < state["wall_seconds"]
    finished = runner(results)(*RUN)
    assert finished.record["seconds"] > state["training_seconds"]
    assert finished.record["wall_seconds"] > state["wall_seconds"]
    assert finished.record["steps_per_second"] == pytest.approx(145 / finished.record["seconds"])


def test_handlers_are_as_before_after_a_run(results):
    before = signal.getsignal(signal.SIGINT)
    stopped(results, *RUN, at=5, number=signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


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


def test_flags_about_output_change_no_number(run_main, straight):
    finished = run_main(*RUN, "--checkpoint_every", "7", "--log_every", "1000", "--notes", "a remark")
    assert finished.code == 0
    record = straight["record"]
    assert numbers(finished) == (record["results"], record["steps"], record["identity"], straight["network"])


def test_progress_bar_and_observers_change_no_number(results, straight, capfd):
    words = [*RUN, "--results_path", str(results), "--num_threads", "1"]
    with observers_added(Progress(5, bar=True), Nosy()):
        finished = call(words)
    assert finished.code == 0
    assert "145/145" in finished.stderr
    record = straight["record"]
    assert numbers(finished) == (record["results"], record["steps"], record["identity"], straight["network"])


# --- errors ---------------------------------------------------------------------------------------------------


def test_diverged_run_leaves_a_record_and_no_bad_checkpoint(results):
    words = [*RUN, "--lr", "1e20", "--checkpoint_every", "1"]
    for again in (False, True):  # the second time from the checkpoint that the first left
        finished = runner(results)(*words)
        assert finished.code == 1
        *note, line = finished.stderr.splitlines()
        assert [f"{text}\n" for text in note] == [goes_on(steps_of(finished.folder)[-1])] * again
        assert line == f"error: {finished.record['reason']}"
        assert re.match(r"error: the run diverged in task \d: the loss became (nan|inf) at step \d+", line)
        assert finished.record["status"] == "failed"
        assert "results" not in finished.record
        assert np.isfinite(newest_state(finished.folder)["losses"]).all()
