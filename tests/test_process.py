"""The edges of a process: streams that are closed, full or cannot spell, and signals while torch is being imported."""

import contextlib
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import call
from forked import ROOT

from scripts.reproduce.__main__ import main as reproduce
from utils.run import records
from utils.run.signals import Interrupted, Signals

RUN = ["--model", "er", "--dataset", "seq-digits", "--num_filters", "2", "--debug_mode", "--num_threads", "1"]
NO_ROOM = "error: cannot write to standard output: No space left on device; records are kept"

# A main program in miniature, without the seconds that torch takes.
PROGRAM = """
import os, sys
from utils import process
process.begin()
{}
sys.exit(process.end(0))
"""


def start(words, streams="", **settings):
    """`streams` are redirections, as a shell writes them."""
    command = ["sh", "-c", f'exec "$0" "$@" {streams}', sys.executable, *words]
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings
    return subprocess.Popen(command, cwd=ROOT, text=True, **settings)


def ended(words, streams="", **settings):
    """(exit code, what was printed, what was complained)."""
    process = start(words, streams, **settings)
    return process.wait(120), *(stream.read() if stream else "" for stream in (process.stdout, process.stderr))


def small(body, streams="", **settings):
    return ended(["-c", PROGRAM.format(body)], streams, **settings)


# --- streams --------------------------------------------------------------------------------------------------


def test_run_trains_and_keeps_its_record_without_streams(tmp_path):
    words = ["main.py", *RUN, "--results_path", str(tmp_path)]
    assert ended(words, "<&- > /dev/full 2>&-")[0] == 1
    (record,) = tmp_path.glob("runs/*/record.json")
    assert json.loads(record.read_text())["status"] == "finished"


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- 2>&-", ">&- 2>&-"])
def test_closed_stream_lends_its_number_to_no_file(tmp_path, streams):
    path = tmp_path / "file"
    body = f"""
print(sys.stdin.read(), end="")
file = open({str(path)!r}, "w")
print("output"), print("message", file=sys.stderr), sys.stderr.isatty()
os.system("echo from a child; echo from a child >&2")
print(file.fileno() > 2, file=file)
"""
    code, out, err = small(body, streams, stdin=subprocess.DEVNULL)
    assert code == 0
    assert sorted(out.splitlines()) == ([] if ">&-" in streams.split() else ["from a child", "output"])
    assert err.splitlines() == ([] if "2>&-" in streams.split() else ["message", "from a child"])
    assert path.read_text() == "True\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_behind_a_stream_does_not_end_what_runs(unbuffered):
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    body = "print('output' * 9999), print('message', file=sys.stderr), print('more')"
    assert small(body, "> /dev/full", env=environment) == (1, "", f"message\n{NO_ROOM}\n")
    assert small(body, "2> /dev/full", env=environment) == (0, "output" * 9999 + "\nmore\n", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_leaves_early_gets_no_complaint(unbuffered):
    read, write = os.pipe()
    os.close(read)
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    code, _, err = small("print('output')\nprint('went on', file=sys.stderr)", stdout=write, env=environment)
    os.close(write)
    assert (code, err) == (0, "went on\n")


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


IMPOSSIBLE = {
    "NUL": "a\0b",
    "surrogate": "a\udcffb",
    "lines": "a\nb",
    "nothing": "",
    "long name": "x" * 300,
    "long path": "x/" * 3000,
    "file": os.fspath(ROOT / "main.py"),
    "below a file": os.fspath(ROOT / "main.py" / "below"),
}


def one_line(code, err):
    assert code == 2
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("name", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_paths_are_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = ["--model", "er", "--dataset", "seq-folder", "--n_tasks", "2"]
    for words in (
        [*RUN, "--results_path", name],
        [*RUN, "--results_path", name, "--dry_run"],
        [*folder, "--base_path", name],
        [*folder, "--base_path", str(ROOT), "--cache_path", name],
        ["--eval_only", name],
        *([[*RUN, "--plugins", name]] if name else []),
    ):
        finished = call(words)
        one_line(finished.code, finished.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_names_for_reproduce_are_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    smoke, place = ["table8", "--preset", "smoke"], ["--results_path", "results"]
    commands = [[command, *smoke, "--results_path", name] for command in ("list", "status", "report", "run")]
    commands += [["report", *smoke, *place, "--output", name]]
    commands += [["list", "table8", "--preset", "cpu", *place, "--base_path", name], ["work", name, "0"]]
    if name:
        commands += [["list", *smoke, *place, option, name] for option in ("--also", "--seeds", "--plugins")]
        commands += [["list", name, *place], ["run", *smoke, *place, "--gpus", name]]
    for words in commands:
        one_line(*told_by_reproduce(words))
    assert list(tmp_path.iterdir()) == []


def told_by_reproduce(words):
    """(exit code, standard error)."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        try:
            code = reproduce(words)
        except SystemExit as left:
            code = left.code
    return code, err.getvalue()


@pytest.mark.parametrize("seeds", ["2147483648", "9" * 5000, "-1", "0,", "1,1"])
def test_seeds_that_no_run_takes_are_refused_before_any_starts(seeds, tmp_path):
    words = ["list", "table8", "--preset", "smoke", "--results_path", str(tmp_path), f"--seeds={seeds}"]
    line = one_line(*told_by_reproduce(words))
    assert line.startswith(
        "error: --seeds must be different whole numbers such as 0-4 or 0,1,2, up to 2147483647; got "
    )


# --- signals --------------------------------------------------------------------------------------------------


def wait_until_torch_is_coming(process):
    maps = Path(f"/proc/{process.pid}/maps")
    end = time.monotonic() + 60
    while "libtorch" not in maps.read_text():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="cannot see what a process has loaded")
@pytest.mark.parametrize("module", ["main.py", "-m scripts.reproduce"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_while_torch_is_imported_ends_with_the_usual_line(tmp_path, module, number, code):
    words = [*module.split(), *(RUN if module == "main.py" else ["list"]), "--results_path", str(tmp_path)]
    process = start(words)
    wait_until_torch_is_coming(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    line = f"stopped by {number.name}; the same command goes on from the last checkpoint\n"
    assert (process.returncode, out, err) == (code, "", line)
    assert list(tmp_path.iterdir()) == []


def test_signals_that_were_blocked_are_heard():
    blocked = {"preexec_fn": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])}
    assert small("os.kill(os.getpid(), 15), sys.exit('not stopped')", **blocked)[0] == 143
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        with pytest.raises(Interrupted), Signals():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def running_below(pid, word):
    """Whether a process that it started has the word in its command."""
    for path in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            if word in Path(f"/proc/{path}/cmdline").read_bytes():
                return True
    return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="cannot see the processes of a process")
def test_sweep_stopped_while_its_server_starts_ends_in_words(tmp_path):
    """As Ctrl-C does: the signal goes to the server too, which is just importing torch."""
    words = ["-m", "scripts.reproduce", "run", "table8", "--preset", "smoke", "--results_path", str(tmp_path)]
    sweep = start(words, start_new_session=True)
    end = time.monotonic() + 60
    while not running_below(sweep.pid, b"forkserver"):
        assert time.monotonic() < end
        time.sleep(0.01)
    os.killpg(sweep.pid, signal.SIGINT)
    _, err = sweep.communicate(timeout=60)
    assert sweep.returncode == 130
    assert err.splitlines()[-2:] == ["stopped; the same command goes on from the checkpoints", "0 runs done, 0 failed"]
    assert "Traceback" not in err


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


def test_commit_is_the_checkouts_own_whatever_the_environment_names(checkout, tmp_path, monkeypatch):
    folder, name = checkout
    other = repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    assert records.commit() == name != other
    monkeypatch.setattr(records, "REPOSITORY", folder / "utils")  # as if unpacked below a repository
    assert records.commit() is None


@pytest.mark.parametrize("path", ["main.py", "models/mine.py", "utils/run/more.py", "scripts/reproduce/plans.py"])
def test_code_that_was_never_committed_marks_the_commit(checkout, path):
    folder, name = checkout
    for other in ("results/runs/a.py", "data/b.py", "c.py", "utils/run/__pycache__/code.pyc", "models/notes.txt"):
        (folder / other).parent.mkdir(parents=True, exist_ok=True)
        (folder / other).touch()
    assert records.commit() == name
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).touch()
    assert records.commit() == f"{name}+changes"
