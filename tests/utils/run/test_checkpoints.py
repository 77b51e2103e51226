"""Checkpoint files: every damage is noticed, other runs are refused, and a full disk costs nothing that was saved."""

import argparse
import io
import json
import os
import random
import re
import shutil
from collections import Counter

import pytest
import torch
from conftest import goes_on, runner
from forked import refusal
from stopped_runs import names, observers_added
from stopped_runs import stopped as stop_run

import utils.run.checkpoints
from tests.models.cut_off import Steps
from tests.outcomes import outcome
from utils.config.loop_options import Interval, interval
from utils.errors import UsageError
from utils.run.checkpoints import FORMAT, Checkpoints, digest, verified_payload

SMALL = ["--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "8", "--buffer_size", "20"]
COMMAND = ["--model", "derpp", "--norm", "adab2n", *SMALL, "--optim_mom", "0.9", "--lr", "0.003", "--save_model"]
EVERY_4 = ["--checkpoint_every", "4"]
PREVIOUS, STOPPED_AT = 41, 43  # four steps after a task end at 29: 33, 37, 41


def interrupted(results, *flags, at=STOPPED_AT):
    """(what runs there, the folder of a run that was stopped after that step)."""
    return runner(results), stop_run(results, *COMMAND, *EVERY_4, *flags, at=at)


def same_end(a, b):
    """Everything but the list of files, in which a damaged one stays as evidence."""
    return {name: a[name] == b[name] for name in ("record", "log", "network")}


ALIKE = {"record": True, "log": True, "network": True}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """What the run leaves that nothing happens to."""
    results = tmp_path_factory.mktemp("straight")
    assert runner(results)(*COMMAND, *EVERY_4).code == 0
    return outcome(results)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The results folder of a run stopped after step 43; tests work on copies of it."""
    results = tmp_path_factory.mktemp("stopped") / "results"
    interrupted(results)
    return results


@pytest.fixture
def copy(stopped, results):
    """(what runs there, the run folder) in a copy of the stopped run."""
    shutil.copytree(stopped, results)
    (folder,) = results.glob("runs/*")
    return runner(results), folder


@pytest.fixture(scope="module")
def other_run(tmp_path_factory):
    """The newest checkpoint of the same command with another seed, stopped at the same step."""
    _, folder = interrupted(tmp_path_factory.mktemp("other") / "results", "--seed", "1")
    return newest(folder).read_bytes()


def newest(folder):
    return max(folder.glob("checkpoint-*.pt"))


def header_of(path):
    return json.loads(path.read_bytes().split(b"\n", 2)[1])


def payload_of(content):
    return content.split(b"\n", 2)[2]


def checkpoints_of(folder):
    header = header_of(newest(folder))
    return Checkpoints(folder, header["identity"], header["sources"], Interval(steps=4))


def sealed(header, payload):
    """A file as the writer would make it, with a digest that fits."""
    line = json.dumps(header).encode() + b"\n"
    return f"{digest(line, payload)}\n".encode() + line + payload


# --- damage ---------------------------------------------------------------------------------------------------


def flip_bit(content, dice):
    header = len(content) - len(payload_of(content))
    place = dice.randrange(dice.choice([header, len(content)]))
    return content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :]


def truncate(content, dice):
    return content[: dice.randrange(1, len(content))]


def zero_range(content, dice):
    start = dice.randrange(len(content))
    size = min(dice.choice([1, 16, 512, 4096]), len(content) - start)
    return content[:start] + bytes(size) + content[start + size :]


def append(content, dice):
    return content + dice.randbytes(dice.choice([1, 1, 100]))


DAMAGES = [flip_bit, truncate, zero_range, append]


def mutations(content, previous, other):
    """200 of them: (name, bytes). The last kinds are whole files and payloads in places of others."""
    dice = random.Random(4)
    made = [("empty", b"")]
    others = [("other step", previous), ("other run", other)]
    others += [
        (f"{name}, payload", content.removesuffix(payload_of(content)) + payload_of(theirs)) for name, theirs in others
    ]
    made += others
    while len(made) < 200:
        damage = dice.choice(DAMAGES)
        mutated = damage(content, dice)
        if mutated != content:  # zeros over zeros are no damage
            made.append((damage.__name__, mutated))
    return made


def test_two_hundred_mutations_are_all_noticed(copy, other_run, capsys):
    _, folder = copy
    path, previous = newest(folder), min(folder.glob("checkpoint-*.pt"))
    content, older = path.read_bytes(), previous.read_bytes()
    checkpoints = checkpoints_of(folder)
    assert checkpoints.load()["cursor"]["step"] == STOPPED_AT
    assert capsys.readouterr().err == ""

    kinds = Counter()
    for kind, mutated in mutations(content, older, other_run):
        path.write_bytes(mutated)
        if kind in ("other step", "other run"):
            with pytest.raises(UsageError, match=re.escape(str(path))):
                checkpoints.load()
            assert path.read_bytes() == mutated
        else:
            assert checkpoints.load()["cursor"]["step"] == checkpoints.last_step == PREVIOUS, kind
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"warning: {path} is damaged (")
            assert line.endswith(f"set aside as {path.stem}.damaged")
            assert not path.exists()
            assert path.with_suffix(".damaged").read_bytes() == mutated
        assert previous.read_bytes() == older
        kinds[kind] += 1
    assert kinds.total() == 200
    assert kinds.keys() == {damage.__name__ for damage in DAMAGES} | {
        "empty", "other step", "other run", "other step, payload", "other run, payload"
    }  # fmt: skip


def test_run_with_a_damaged_checkpoint_goes_on_from_the_previous_one(copy, straight):
    run, folder = copy
    path = newest(folder)
    path.write_bytes(flip_bit(path.read_bytes(), random.Random(7)))
    with observers_added(steps := Steps()):
        finished = run(*COMMAND, *EVERY_4)
    assert finished.code == 0
    line, note = finished.stderr.splitlines(keepends=True)
    assert line.startswith(f"warning: {path} is damaged (")
    assert note == goes_on(PREVIOUS)
    assert steps.done == list(range(PREVIOUS, 145))
    assert same_end(outcome(folder.parent.parent), straight) == ALIKE
    assert names(folder) == ["checkpoint-000000043.damaged"]


# --- files of other runs --------------------------------------------------------------------------------------


def test_checkpoint_of_another_format_is_refused_and_stays(copy):
    run, folder = copy
    path = newest(folder)
    path.write_bytes(sealed(header_of(path) | {"format": FORMAT + 1}, payload_of(path.read_bytes())))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    line = refusal(run(*COMMAND, *EVERY_4))
    assert all(word in line for word in (f"error: {path} ", f"format {FORMAT + 1}", "--rerun"))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def test_code_in_a_checkpoint_is_never_run(copy, straight, tmp_path):
    run, folder = copy
    path, marker = newest(folder), tmp_path / "executed"
    payload = io.BytesIO()
    torch.save({"cursor": Evil(str(marker))}, payload)
    path.write_bytes(sealed(header_of(path), payload.getvalue()))
    verified_payload(path)  # its digest is right
    finished = run(*COMMAND, *EVERY_4)
    assert not marker.exists()
    assert finished.code == 0
    assert str(path) in finished.stderr.splitlines()[0]
    assert same_end(outcome(folder.parent.parent), straight) == ALIKE


# --- what is kept ---------------------------------------------------------------------------------------------


def test_newest_two_are_kept_and_none_in_the_end(results, monkeypatch):
    kept = []
    original = Checkpoints.save
    monkeypatch.setattr(
        Checkpoints, "save", lambda self, step, state: (original(self, step, state), kept.append(names(self.folder)))
    )
    finished = runner(results)(*COMMAND, "--checkpoint_every", "10")
    assert finished.code == 0
    # Every tenth step, and the task ends 29, 58, ..., from which the next ten are counted.
    steps = [10, 20, 29, 39, 49, 58, 68, 78, 87, 97, 107, 116, 126, 136, 145]
    saved = [f"checkpoint-{step:09d}.pt" for step in steps]
    assert kept == [saved[max(0, k - 1) : k + 1] for k in range(len(saved))]
    assert sorted(path.name for path in finished.folder.iterdir()) == [
        "config.json", "lock", "metrics.jsonl", "model.safetensors", "record.json"
    ]  # fmt: skip


def test_due_by_seconds(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(utils.run.checkpoints.time, "monotonic", lambda: now)
    checkpoints, due = Checkpoints(tmp_path, {}, {}, Interval(seconds=2.5)), []
    for now in (102.4, 102.5, 104):  # noqa: B007 (read by the clock)
        due.append(checkpoints.due(1000))
    checkpoints.save(1000, {})
    for now in (106.4, 106.6):  # noqa: B007 (read by the clock)
        due.append(checkpoints.due(2000))
    assert due == [False, True, True, False, True]


@pytest.mark.parametrize(
    ("text", "steps", "seconds", "shown"),
    [
        ("1", 1, None, "1 steps"),
        ("500", 500, None, "500 steps"),
        ("300s", None, 300, "300s"),
        ("0.5s", None, 0.5, "0.5s"),
        ("5m", None, 300, "300s"),
        ("1.5h", None, 5400, "5400s"),
    ],
)
def test_intervals(text, steps, seconds, shown):
    assert interval(text) == Interval(steps, seconds)
    assert str(interval(text)) == shown


@pytest.mark.parametrize("text", ["", "s", "0", "0s", "-5m", "nan", "infs", "1e308h", "1.5", "10d", "5 minutes"])
def test_what_is_no_interval(text):
    with pytest.raises(argparse.ArgumentTypeError, match="300s"):
        interval(text)
