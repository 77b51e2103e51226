"""The streams of a process, signals, and the commit of the checkout."""

import logging
import os
import signal
import subprocess
import sys

import pytest
from conftest import call
from forked import ROOT

from utils import console
from utils.run import records
from utils.run.signals import Interrupted, Signals

# A main program in miniature, without the seconds that torch takes.
PROGRAM = """
import sys
from utils import console
console.begin()
{}
sys.exit(console.end(0))
"""


def ended(body, stdout=subprocess.PIPE, **environment):
    """Return (exit code, standard output, standard error) of the program."""
    words = [sys.executable, "-c", PROGRAM.format(body)]
    environment = os.environ | {"PYTHONUNBUFFERED": ""} | environment
    done = subprocess.run(words, cwd=ROOT, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stdout or "", done.stderr


def test_output_that_does_not_fit_on_the_disk_is_an_error():
    with open("/dev/full", "w") as full:
        code, _, err = ended("print('output')", stdout=full)
    assert code == 1
    (line,) = err.splitlines()
    assert "No space left on device" in line
    with open("/dev/full", "w") as full:
        code, _, err = ended("print('output'), sys.exit(console.end(console.complain(OSError('full'))))", stdout=full)
    assert (code, len(err.splitlines())) == (2, 1)


def test_reader_that_leaves_early_gets_no_complaint():
    read, write = os.pipe()
    os.close(read)
    code, _, err = ended("print('output')\nprint('went on', file=sys.stderr)", stdout=write)
    os.close(write)
    assert (code, err) == (0, "went on\n")


def test_letters_that_a_terminal_lacks_are_escaped():
    body = r"print('\u03ba = 0.7'), print('AdaB\xb2N', file=sys.stderr)"
    assert ended(body, PYTHONIOENCODING="ascii") == (0, "\\u03ba = 0.7\n", "AdaB\\xb2N\n")


def test_notes_and_warnings_go_to_standard_error_until_they_are_silenced(capsys):
    console.log.info("read")
    console.log.warning("old")
    assert capsys.readouterr() == ("", "note: read\nwarning: old\n")
    console.log.setLevel(logging.ERROR)
    try:
        console.log.warning("old")
        assert capsys.readouterr() == ("", "")
    finally:
        console.log.setLevel(logging.INFO)


def test_signals_that_were_blocked_are_heard():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        with pytest.raises(Interrupted), Signals():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_standard_error_that_is_gone_is_no_error():
    body = "console.os.close(2), print('text', file=sys.stderr), console.log.warning('text'), print('went on')"
    assert ended(body)[:2] == (0, "went on\n")


def test_interrupt_before_there_is_anything_to_save_is_one_line(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("main.run_one", interrupt)
    stopped = call(["--model", "sgd", "--dataset", "seq-digits"])
    assert (stopped.code, stopped.stdout) == (130, "")
    assert stopped.stderr.startswith("stopped by SIGINT")


# --- the checkout -----------------------------------------------------------------------------------------------------


def create_repository(folder):
    """Create a repository with one committed file; return its commit."""
    (folder / "utils/run").mkdir(parents=True)
    (folder / "utils/run/code.py").write_text(f"# {folder}\n")
    author = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    for words in (["init"], ["add", "."], [*author, "commit", "-m", "all"]):
        subprocess.run(["git", *words], cwd=folder, capture_output=True, check=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_commit_is_the_checkouts_own_and_marked_if_its_code_has_changes(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    checkout = tmp_path / "checkout"
    commit = create_repository(checkout)
    monkeypatch.setattr(records, "REPOSITORY", checkout)
    for path in ("results/runs/a.py", "data/b.py", "c.py", "models/notes.txt"):
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / path).touch()
    assert records.commit() == commit
    (checkout / "models/mine.py").touch()
    assert records.commit() == f"{commit}+changes"
    monkeypatch.setattr(records, "REPOSITORY", checkout / "utils")  # as if unpacked below a repository
    assert records.commit() is None
