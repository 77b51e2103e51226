"""Checkpoint files: every damage is noticed, strangers are refused, and a full disk costs nothing that was saved."""

import argparse
import errno
import io
import itertools
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess

import pytest
import torch
from conftest import ANSWERED, goes_on, runner

import main
import utils.files
import utils.run.checkpoints
import utils.run.execution
from models.method import Method
from scripts.soak import outcome
from utils.config.loop_options import Interval, interval
from utils.errors import RunFailed, UsageError
from utils.run.checkpoints import FORMAT, Checkpoints, Damaged, header_digest, verified_payload
from utils.run.observers import JsonLines, Observer

SMALL = ["--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "8", "--buffer_size", "20"]
COMMAND = ["--model", "derpp", "--norm", "adab2n", *SMALL, "--optim_mom", "0.9", "--lr", "0.003", "--save_model"]
EVERY_4 = ["--checkpoint_every", "4"]
PREVIOUS, STOPPED_AT = 41, 43  # four steps after a task end at 29: 33, 37, 41


class Stop(Observer):
    """Sends a signal to this process after a step, when the run is ready for it."""

    def __init__(self, at: int):
        self.at = at

    def on_step(self, step):
        if step.place.step + 1 == self.at:
            assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None)
            signal.raise_signal(signal.SIGTERM)


def stop_after(patch, step):
    original = utils.run.execution.build_observers
    patch.setattr(utils.run.execution, "build_observers", lambda *a, **k: [*original(*a, **k), Stop(step)])


def interrupted(results, *flags, at=STOPPED_AT):
    """(what runs there, the folder of a run that was stopped after that step)."""
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, at)
        finished = runner(results)(*COMMAND, *EVERY_4, *flags)
    assert finished.code == 143
    (folder,) = results.glob("runs/*")
    return runner(results), folder


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


def names(folder):
    return sorted(path.name for path in folder.iterdir() if "checkpoint" in path.name)


def newest(folder):
    return max(folder.glob("checkpoint-*.pt"))


def header_of(path):
    return json.loads(path.read_bytes().partition(b"\n")[0])


def checkpoints_of(folder):
    header = header_of(newest(folder))
    return Checkpoints(folder, header["identity"], header["sources"], Interval(steps=4))


def sealed(header, payload):
    """A file as the writer would make it, with digests that fit."""
    header = {k: v for k, v in header.items() if k != "header_digest"}
    header["digest"] = utils.run.checkpoints.hashlib.sha256(payload).hexdigest()
    return json.dumps(header | {"header_digest": header_digest(header)}).encode() + b"\n" + payload


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


# --- damage ---------------------------------------------------------------------------------------------------


def flip_bit(content, dice, limit=None):
    place = dice.randrange(limit or len(content))
    return content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :]


def flip_bit_of_header(content, dice):
    return flip_bit(content, dice, content.index(b"\n") + 1)


def truncate(content, dice):
    return content[: dice.randrange(1, len(content))]


def truncate_header(content, dice):
    return content[: dice.randrange(1, content.index(b"\n") + 1)]


def zero_range(content, dice):
    start = dice.randrange(len(content))
    size = min(dice.choice([1, 16, 512, 4096]), len(content) - start)
    return content[:start] + bytes(size) + content[start + size :]


def exchange_blocks(content, dice):
    a, b = sorted(dice.sample(range(len(content) // 512), 2))
    blocks = [content[k : k + 512] for k in range(0, len(content), 512)]
    blocks[a], blocks[b] = blocks[b], blocks[a]
    return b"".join(blocks)


def append(content, dice):
    return content + dice.randbytes(dice.choice([1, 1, 100]))


def remove_bytes(content, dice):
    start = dice.randrange(len(content))
    return content[:start] + content[start + dice.randint(1, 64) :]


def make_empty(content, dice):
    return b""


DAMAGES = [flip_bit, flip_bit_of_header, truncate, truncate_header, zero_range, exchange_blocks, append, remove_bytes]


def mutations(content, previous, other):
    """200 of them: (name, bytes). The last kinds are whole files and payloads in places of others."""
    dice = random.Random(4)
    made = [("empty", b"")]
    strangers = [("other step", previous), ("other run", other)]
    strangers += [
        (f"{name}, payload", content.partition(b"\n")[0] + b"\n" + theirs.partition(b"\n")[2])
        for name, theirs in strangers
    ]
    made += strangers
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
    sound = torch.load(io.BytesIO(content.partition(b"\n")[2]), weights_only=True)
    fallback = torch.load(io.BytesIO(older.partition(b"\n")[2]), weights_only=True)
    assert not equal(sound, fallback)
    checkpoints = checkpoints_of(folder)
    assert equal(checkpoints.load(), sound)
    assert capsys.readouterr().err == ""

    noticed, kinds = 0, set()
    for kind, mutated in mutations(content, older, other_run):
        path.write_bytes(mutated)
        if kind in ("other step", "other run"):
            with pytest.raises(UsageError, match=re.escape(str(path))):
                checkpoints.load()
            assert path.read_bytes() == mutated
        else:
            assert equal(checkpoints.load(), fallback), kind
            assert checkpoints.last_step == PREVIOUS
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"warning: {path} is damaged (")
            assert line.endswith(f"set aside as {path.stem}.damaged")
            assert not path.exists()
            assert path.with_suffix(".damaged").read_bytes() == mutated
        assert previous.read_bytes() == older
        noticed += 1
        kinds.add(kind)
    assert noticed == 200
    assert kinds == {damage.__name__ for damage in DAMAGES} | {
        "empty", "other step", "other run", "other step, payload", "other run, payload"
    }  # fmt: skip


@pytest.mark.parametrize("damage", [flip_bit, truncate, zero_range])
def test_run_with_a_damaged_checkpoint_goes_on_from_the_previous_one(copy, straight, damage, monkeypatch):
    run, folder = copy
    path = newest(folder)
    assert names(folder) == ["checkpoint-000000041.pt", "checkpoint-000000043.pt"]
    content, dice = path.read_bytes(), random.Random(7)
    mutated = content
    while mutated == content:
        mutated = damage(content, dice)
    path.write_bytes(mutated)
    steps = []
    original = Method.step
    monkeypatch.setattr(
        Method, "step", lambda self, batch, place: steps.append(place.step) or original(self, batch, place)
    )
    finished = run(*COMMAND, *EVERY_4)
    assert finished.code == 0
    line, note = finished.stderr.splitlines(keepends=True)
    assert line.startswith(f"warning: {path} is damaged (")
    assert note == goes_on(PREVIOUS)
    assert steps == list(range(PREVIOUS, 145))
    assert same_end(outcome(folder.parent.parent), straight) == ALIKE
    assert names(folder) == ["checkpoint-000000043.damaged"]


def test_run_whose_checkpoints_are_all_damaged_starts_over(copy, straight):
    run, folder = copy
    for path in folder.glob("checkpoint-*.pt"):
        path.write_bytes(path.read_bytes()[:-1])
    finished = run(*COMMAND, *EVERY_4)
    assert finished.code == 0
    assert [line.split(" is damaged")[0] for line in finished.stderr.splitlines()] == [
        f"warning: {folder / name}" for name in ("checkpoint-000000043.pt", "checkpoint-000000041.pt")
    ]
    assert same_end(outcome(folder.parent.parent), straight) == ALIKE


# --- strangers ------------------------------------------------------------------------------------------------


def refused(copy, words):
    """The command is refused with one line that has the words, and nothing in the folder changes."""
    run, folder = copy
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    finished = run(*COMMAND, *EVERY_4)
    assert (finished.code, finished.stdout) == (2, "")
    (line,) = finished.stderr.splitlines()
    assert line.startswith(f"error: {newest(folder)} ")
    assert all(word in line for word in words), line
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_checkpoint_of_another_format_is_refused(copy):
    path = newest(copy[1])
    payload = path.read_bytes().partition(b"\n")[2]
    path.write_bytes(sealed(header_of(path) | {"format": FORMAT + 1}, payload))
    refused(copy, [f"has format {FORMAT + 1}, this code reads {FORMAT}", "--rerun"])


def test_checkpoint_of_another_run_is_refused(copy, other_run):
    newest(copy[1]).write_bytes(other_run)
    refused(copy, ["class_order_seed 1 instead of 0", "seed 1 instead of 0", "--rerun"])


def test_checkpoint_of_code_with_other_numbers_is_refused(copy):
    path = newest(copy[1])
    header, payload = header_of(path), path.read_bytes().partition(b"\n")[2]
    header["identity"] = header["identity"] | {"numerics_version": 99, "kappa": 0.5}
    path.write_bytes(sealed(header, payload))
    refused(copy, ["kappa 0.5 instead of 0.7", "numerics_version 99 instead of "])


def test_checkpoint_of_another_step_is_refused(copy):
    folder = copy[1]
    shutil.copy(min(folder.glob("checkpoint-*.pt")), newest(folder))
    refused(copy, ["(41)", "--rerun"])


@pytest.mark.parametrize("how", ["refused", "rerun"])
def test_refused_checkpoint_is_gone_with_rerun(copy, straight, other_run, how):
    run, folder = copy
    newest(folder).write_bytes(other_run)
    if how == "refused":
        assert run(*COMMAND, *EVERY_4).code == 2
    finished = run(*COMMAND, *EVERY_4, "--rerun")
    assert (finished.code, finished.stderr) == (0, "")
    assert finished.record["results"] == straight["record"]["results"]
    assert names(folder) == []


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("container", ["zip", "pickle"])
def test_code_in_a_checkpoint_is_never_run(copy, straight, tmp_path, container):
    run, folder = copy
    path, marker = newest(folder), tmp_path / "executed"
    content = {"cursor": Evil(str(marker))}
    payload = io.BytesIO()
    if container == "zip":
        torch.save(content, payload)
    else:
        pickle.dump(content, payload, protocol=2)
    path.write_bytes(sealed(header_of(path), payload.getvalue()))
    verified_payload(path)  # its digests are right
    finished = run(*COMMAND, *EVERY_4)
    assert not marker.exists()
    assert finished.code in (0, 2)
    assert str(path) in finished.stderr.splitlines()[0]
    if finished.code == 0:
        assert same_end(outcome(folder.parent.parent), straight) == ALIKE


@pytest.mark.parametrize("name", ["checkpoint-old.pt", "checkpoint-000000050 (1).pt"])
def test_file_with_a_name_of_the_users_own_does_no_harm(copy, straight, name):
    run, folder = copy
    (folder / name).write_bytes(newest(folder).read_bytes())
    finished = run(*COMMAND, *EVERY_4)
    assert finished.code in (0, 2)
    if finished.code == 2:
        (line,) = finished.stderr.splitlines()
        assert name in line
    else:
        assert same_end(outcome(folder.parent.parent), straight) == ALIKE


def test_folder_in_place_of_a_checkpoint_ends_without_a_traceback(copy, straight):
    run, folder = copy
    path = newest(folder)
    path.unlink()
    path.mkdir()
    finished = run(*COMMAND, *EVERY_4)
    assert finished.code in (0, 2)
    if finished.code == 2:
        (line,) = finished.stderr.splitlines()
        assert path.name in line
    else:
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


def test_state_comes_back_to_the_bit(tmp_path):
    dice = torch.Generator().manual_seed(0)
    state = {
        "single": torch.randn(5, generator=dice),
        "double": torch.randn(3, generator=dice, dtype=torch.float64),
        "bytes": torch.arange(256, dtype=torch.uint8),
        "plain": {"a": [1, 2.5, None], "b": "text", "c": float("inf")},
    }
    checkpoints = Checkpoints(tmp_path, {"lr": 0.1, "lr_milestones": [1, 2]}, {}, Interval(steps=1))
    assert checkpoints.load() is None
    checkpoints.save(7, state)
    again = Checkpoints(tmp_path, {"lr": 0.1, "lr_milestones": [1, 2]}, {}, Interval(steps=1))
    assert equal(again.load(), state)
    assert again.last_step == 7


def test_file_that_does_not_verify_is_not_kept(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, {}, {}, Interval(steps=1))
    for step in (1, 2):
        checkpoints.save(step, {"step": step})
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def failing(path):
        assert sorted(before) == sorted(set(tmp_path.iterdir()) - {path})  # the old ones are there until it verifies
        raise Damaged("bad disk")

    monkeypatch.setattr(utils.run.checkpoints, "verified_payload", failing)
    with pytest.raises(RunFailed, match=r"checkpoint-000000003\.pt was not written as it should be \(bad disk\)"):
        checkpoints.save(3, {"step": 3})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.undo()
    assert checkpoints.load() == {"step": 2}


@pytest.mark.parametrize("name", ["checkpoint-000000044.pt", "record.json", "model.safetensors"])
def test_what_a_killed_writer_leaves_does_no_harm(copy, straight, name):
    run, folder = copy
    (folder / f".{name}.12345.tmp").write_bytes(newest(folder).read_bytes()[:1000])
    finished = run(*COMMAND, *EVERY_4)
    assert (finished.code, finished.stderr) == (0, goes_on(STOPPED_AT))
    assert outcome(folder.parent.parent) == straight  # the list of files too


def test_due_by_steps(tmp_path):
    checkpoints = Checkpoints(tmp_path, {}, {}, Interval(steps=3))
    assert [checkpoints.due(step) for step in range(1, 6)] == [False, False, True, True, True]
    checkpoints.save(3, {})
    assert [checkpoints.due(step) for step in range(4, 8)] == [False, False, True, True]
    checkpoints.save(5, {})  # a task end
    assert [checkpoints.due(step) for step in range(6, 9)] == [False, False, True]
    resumed = Checkpoints(tmp_path, {}, {}, Interval(steps=3))
    resumed.load()
    assert [resumed.due(step) for step in range(6, 9)] == [False, False, True]


def test_due_by_seconds(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(utils.run.checkpoints.time, "monotonic", lambda: now)
    checkpoints = Checkpoints(tmp_path, {}, {}, Interval(seconds=2.5))
    answers = []
    for now in (100, 102.4, 102.5, 104):  # noqa: B007 (read by the clock)
        answers.append(checkpoints.due(1000))
    assert answers == [False, False, True, True]
    checkpoints.save(1000, {})
    answers = []
    for now in (104, 106.4, 106.6):  # noqa: B007
        answers.append(checkpoints.due(2000))
    assert answers == [False, False, True]


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


@pytest.mark.parametrize(
    "text",
    ["", "s", "m", "0", "0s", "-1", "-5m", "nan", "nans", "inf", "infs", "1e308h", "1.5", "10d", "5 minutes", "five"],
)
def test_what_is_no_interval(text):
    with pytest.raises(argparse.ArgumentTypeError, match="must be a time such as 300s or 5m, or a number of steps"):
        interval(text)


# --- no room --------------------------------------------------------------------------------------------------


def full():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def name_of(descriptor):
    return os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))


def fail_at_write(patch, matches):
    def failing_open(path, *mode, **options):
        file = open(path, *mode, **options)  # noqa: SIM115 (its caller closes it)
        if matches(os.path.basename(path)):
            file.write(b"the first half")
            file.flush()
            file.close()
            raise full()
        return file

    patch.setattr(utils.files, "open", failing_open, raising=False)


def fail_at_fsync(patch, matches):
    original = os.fsync

    def failing(descriptor):
        if matches(name_of(descriptor)):
            raise full()
        original(descriptor)

    patch.setattr(os, "fsync", failing)


def fail_at_rename(patch, matches):
    original = os.replace

    def failing(source, target):
        if matches(os.path.basename(source)):
            raise full()
        original(source, target)

    patch.setattr(os, "replace", failing)


@pytest.mark.parametrize(
    ("fail", "nth"), [(fail_at_write, 1), (fail_at_write, 5), (fail_at_fsync, 5), (fail_at_rename, 2)]
)
def test_disk_that_fills_up_costs_one_checkpoint(results, straight, fail, nth):
    count = itertools.count(1)

    def is_nth_checkpoint(name):
        return name.startswith(".checkpoint-") and next(count) >= nth

    with pytest.MonkeyPatch.context() as patch:
        fail(patch, is_nth_checkpoint)
        finished = runner(results)(*COMMAND, *EVERY_4)
    assert finished.code == 1
    (line,) = finished.stderr.splitlines()
    assert line.startswith(f"error: cannot write {finished.folder / f'checkpoint-{4 * nth:09d}.pt'}: No space left on")
    assert "give the same command again" in line
    assert finished.record["status"] == "failed"
    assert line == f"error: {finished.record['reason']}"
    kept = [4 * k for k in range(max(1, nth - 2), nth)]
    assert names(finished.folder) == [f"checkpoint-{step:09d}.pt" for step in kept]
    for path in finished.folder.glob("checkpoint-*"):
        assert verified_payload(path)[0]["step"] in kept
    assert not list(finished.folder.glob(".*"))

    again = runner(results)(*COMMAND, *EVERY_4)
    assert (again.code, again.stderr) == (0, goes_on(kept[-1]) if kept else "")
    assert outcome(results) == straight


@pytest.mark.parametrize(
    ("name", "fail"),
    [
        ("config.json", fail_at_write),
        ("model.safetensors", fail_at_fsync),
        ("record.json", fail_at_write),
        ("owner.json", fail_at_fsync),
    ],
)
def test_disk_that_is_full_for_any_other_file_is_one_line_too(results, straight, fail, name):
    with pytest.MonkeyPatch.context() as patch:
        fail(patch, lambda written: written.startswith(f".{name}."))
        finished = runner(results)(*COMMAND, *EVERY_4)
    assert finished.code in ((1, 2) if name in ("owner.json", "config.json") else (1,))
    (line,) = finished.stderr.splitlines()
    assert line.startswith("error: ")
    assert "No space left on device" in line
    (folder,) = results.glob("runs/*")
    assert not list(folder.glob(".*"))
    again = runner(results)(*COMMAND, *EVERY_4)
    assert (again.code, again.stderr) == (0, goes_on(145) if name in ("model.safetensors", "record.json") else "")
    assert outcome(results) == straight


def test_no_room_for_a_record_either(results, straight, capsys):
    argv = [*COMMAND, *EVERY_4, "--results_path", str(results), "--num_threads", "1", "--non_verbose"]
    with pytest.MonkeyPatch.context() as patch:
        fail_at_fsync(patch, lambda name: name.startswith((".checkpoint-000000012", ".record.json")))
        assert main.main(argv) == 1
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert "checkpoint-000000012.pt: No space left on device" in line
    assert "no room for a record" in line
    (folder,) = results.glob("runs/*")
    assert not list(folder.glob("record.json"))
    assert said.out == ""  # and no word of a record that is not there
    assert names(folder) == ["checkpoint-000000004.pt", "checkpoint-000000008.pt"]
    assert main.main(argv) == 0
    assert outcome(results) == straight


def mounted(path, *options):
    """A small file system of its own at `path`; skips where that is not allowed."""
    path.mkdir(exist_ok=True)
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(path)], capture_output=True)
    except OSError as error:
        pytest.skip(f"no mount: {error}")
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.decode().strip()}")


@pytest.fixture
def mount(tmp_path):
    path = tmp_path / "mounted"
    yield path, lambda *options: mounted(path, *options)
    if os.path.ismount(path):
        subprocess.run(["umount", str(path)], check=True)


def test_real_disk_that_fills_up(mount, stopped, straight):
    path, do_mount = mount
    (folder,) = stopped.glob("runs/*")
    size = newest(folder).stat().st_size
    do_mount("-o", f"size={int(2.6 * size)}")
    finished = runner(path / "results")(*COMMAND, *EVERY_4)
    assert finished.code == 1
    (line,) = finished.stderr.splitlines()
    assert "No space left on device" in line
    (folder,) = path.glob("results/runs/*")
    assert names(folder) == ["checkpoint-000000004.pt", "checkpoint-000000008.pt"]
    for checkpoint in folder.glob("checkpoint-*"):
        verified_payload(checkpoint)
    assert not list(folder.glob(".*"))

    again = runner(path / "results")(*COMMAND, *EVERY_4)  # still full
    assert again.code in (1, 2)
    *note, line = again.stderr.splitlines(keepends=True)
    assert note in ([], [goes_on(8)])
    assert "No space left on device" in line
    assert names(folder) == ["checkpoint-000000004.pt", "checkpoint-000000008.pt"]

    subprocess.run(["mount", "-o", f"remount,size={20 * size}", str(path)], check=True)
    last = runner(path / "results")(*COMMAND, *EVERY_4)
    assert (last.code, last.stderr) == (0, goes_on(8))
    assert outcome(path / "results") == straight


def test_log_never_holds_half_a_line(tmp_path):
    """A write that only partly fits returns without an error."""
    path = tmp_path / "metrics.jsonl"
    log = JsonLines(path)
    log.on_start(10, 0)
    log.on_log({"step": 1, "task": 0})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))
    try:
        for step in (2, 3):
            try:
                log.on_log({"step": step, "task": 0})
            except OSError:
                break
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.on_log({"step": 4, "task": 0})
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps == [1, 4]
    assert log.state_dict()["position"] == path.stat().st_size


# --- no way to write ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["results", "results/runs", "the run folder"])
def test_file_in_the_way_is_one_line(results, where, stopped):
    (folder,) = stopped.glob("runs/*")
    path = {"results": results, "results/runs": results / "runs"}.get(where, results / "runs" / folder.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("in the way")
    finished = runner(results)(*COMMAND, *EVERY_4)
    assert (finished.code, finished.stdout) == (2, "")
    (line,) = finished.stderr.splitlines()
    refusal = f"error: cannot write to {results / 'runs' / folder.name}: "
    assert line.startswith("error: argument --results_path: must be a folder" if where == "results" else refusal)
    assert "--results_path" in line
    assert path.read_text() == "in the way"


def test_read_only_file_system_is_one_line(mount):
    path, do_mount = mount
    do_mount("-o", "ro")
    finished = runner(path / "results")(*COMMAND, *EVERY_4)
    assert (finished.code, finished.stdout) == (2, "")
    (line,) = finished.stderr.splitlines()
    assert "Read-only file system" in line
    assert "--results_path" in line


def test_run_on_a_file_system_turned_read_only_is_refused_but_a_finished_one_answers(mount, copy):
    path, do_mount = mount
    do_mount()
    shutil.copytree(copy[1].parent.parent, path / "results")
    subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
    finished = runner(path / "results")(*COMMAND, *EVERY_4)
    assert finished.code == 2
    (line,) = finished.stderr.splitlines()
    assert "Read-only file system" in line
    subprocess.run(["mount", "-o", "remount,rw", str(path)], check=True)
    assert runner(path / "results")(*COMMAND, *EVERY_4).code == 0
    subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
    answered = runner(path / "results")(*COMMAND, *EVERY_4)
    assert answered.code == 0
    assert ANSWERED.fullmatch(answered.stderr)
