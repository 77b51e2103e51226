"""The streams of a process, impossible paths, signals, and the commit of the checkout."""

import importlib
import logging
import os
import signal
import subprocess
import sys

import pytest
from conftest import call
from forked import ROOT

from scripts.reproduce import main as reproduce
from utils import console
from utils.run import records
from utils.run.signals import Interrupted, Signals

RUN = ["--model", "er", "--dataset", "seq-digits", "--num_filters", "2", "--debug_mode", "--num_threads", "1"]

# A main program in miniature, without the seconds that torch takes.
PROGRAM = """
import os, sys
from utils import console
console.begin()
{}
sys.exit(console.end(0))
"""


def ended(words, streams="", **settings):
    """Return (exit code, standard output, standard error). `streams` are redirections, as a shell writes them."""
    command = ["sh", "-c", f'exec "$0" "$@" {streams}', sys.executable, *words]
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings
    done = subprocess.run(command, cwd=ROOT, text=True, check=False, **settings)
    return done.returncode, done.stdout or "", done.stderr or ""


def small(body, streams="", env=os.environ, **settings):
    return ended(["-c", PROGRAM.format(body)], streams, env=env | {"PYTHONUNBUFFERED": ""}, **settings)


# --- streams --------------------------------------------------------------------------------------------------


def test_output_that_does_not_fit_on_the_disk_is_an_error():
    code, _, err = small("print('output')", "> /dev/full")
    assert code == 1
    (line,) = err.splitlines()
    assert "No space left on device" in line


def test_reader_that_leaves_early_gets_no_complaint():
    read, write = os.pipe()
    os.close(read)
    code, _, err = small("print('output')\nprint('went on', file=sys.stderr)", stdout=write)
    os.close(write)
    assert (code, err) == (0, "went on\n")


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


# --- letters and names ----------------------------------------------------------------------------------------

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}


def test_letters_that_a_terminal_lacks_are_escaped():
    body = r"print('\u03ba = 0.7'), print('AdaB\xb2N', file=sys.stderr)"
    assert small(body, env=os.environ | ASCII) == (0, "\\u03ba = 0.7\n", "AdaB\\xb2N\n")


def test_reports_are_the_same_in_every_locale(tmp_path):
    words = ["-m", "scripts.reproduce", "report", "table8", "fig3", "--preset", "smoke", "--results_path"]
    code, out, err = ended([*words, str(tmp_path / "ascii")], env=os.environ | ASCII)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"report: {tmp_path}/ascii/reports/smoke/report.html"
    assert reproduce([*words[2:], str(tmp_path / "other")]) == 0
    pages = [(tmp_path / place / "reports/smoke/report.md").read_bytes() for place in ("ascii", "other")]
    assert pages[0] == pages[1]
    assert "κ and λ are fixed".encode() in pages[0]


@pytest.mark.parametrize("name", ["a\0b", "a\udcffb"], ids=["NUL", "surrogate"])
@pytest.mark.parametrize("flag", ["--results_path", "--base_path", "--cache_path", "--eval_only", "--plugins"])
def test_impossible_path_is_one_line(flag, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finished = call([*RUN, flag, name])
    assert finished.code == 2
    (line,) = finished.stderr.splitlines()
    assert line.startswith("error: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seeds", ["2147483648", "9" * 5000, "-1", "0,", "1,1"])
def test_seeds_that_no_run_takes_are_refused_before_any_starts(seeds, tmp_path, capsys):
    words = ["list", "table8", "--preset", "smoke", "--results_path", str(tmp_path), f"--seeds={seeds}"]
    assert reproduce(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--seeds" in line


# --- signals --------------------------------------------------------------------------------------------------


def test_signals_that_were_blocked_are_heard():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        with pytest.raises(Interrupted), Signals():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def test_a_signal_is_only_noted_while_it_is_held():
    with Signals() as signals:
        with signals.held():
            signal.raise_signal(signal.SIGINT)
            assert signals.received == signal.SIGINT
        with pytest.raises(Interrupted):
            signals.check()


def test_interrupt_before_there_is_anything_to_save_is_one_line(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("utils.run.build.StreamBuilder", interrupt)
    ended = call(RUN)
    assert (ended.code, ended.stdout) == (130, "")
    assert ended.stderr.startswith("stopped by SIGINT")


def test_importing_main_leaves_streams_and_signals_alone(monkeypatch):
    def here():
        return [sys.stdout, sys.stderr, *map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))]

    before = here()
    monkeypatch.delitem(sys.modules, "main")
    importlib.import_module("main")
    assert here() == before


# --- the checkout ---------------------------------------------------------------------------------------------


def git(folder, *words):
    author = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", "-C", str(folder), *author, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(folder):
    """With one committed file; and its commit."""
    (folder / "utils/run").mkdir(parents=True)
    (folder / "utils/run/code.py").write_text(f"# {folder}\n")
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "all")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """(folder, commit) of a repository that takes this one's place."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "checkout"
    monkeypatch.setattr(records, "REPOSITORY", folder)
    return folder, repository(folder)


def test_commit_is_that_of_the_checkout_and_of_no_repository_above_it(checkout, monkeypatch):
    folder, name = checkout
    assert records.commit() == name
    monkeypatch.setattr(records, "REPOSITORY", folder / "utils")  # as if unpacked below a repository
    assert records.commit() is None


@pytest.mark.parametrize("path", ["main.py", "models/mine.py", "utils/run/more.py", "utils/studies/plans.py"])
def test_code_that_was_never_committed_marks_the_commit(checkout, path):
    folder, name = checkout
    for other in ("results/runs/a.py", "data/b.py", "c.py", "utils/run/__pycache__/code.pyc", "models/notes.txt"):
        (folder / other).parent.mkdir(parents=True, exist_ok=True)
        (folder / other).touch()
    assert records.commit() == name
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).touch()
    assert records.commit() == f"{name}+changes"
