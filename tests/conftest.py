"""What all tests share: one thread, and whole commands run in process."""

import contextlib
import io
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import main
from tests.outcomes import outcome
from utils.config.registry import FAILED_FILES, REGISTRIES
from utils.run.training import Training

torch.set_num_threads(1)

# All that a command says on standard error which takes a finished record.
ANSWERED = re.compile(
    r"note: finished on \d{4}-\d\d-\d\d \d\d:\d\d UTC at commit ([0-9a-f]{12}(\+changes)?|unknown), not trained again\n"
)


def goes_on(step: int) -> str:
    """All that a command says there which goes on from a checkpoint."""
    return f"note: goes on from step {step}\n"


@dataclass(frozen=True)
class Finished:
    """How a command ended. `record` is what its last line on standard output points to."""

    code: int
    stdout: str
    stderr: str
    record: dict[str, Any] | None
    folder: Path | None


def call(argv: list[str]) -> Finished:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main.main(argv)
    last = (out.getvalue().splitlines() or [""])[-1]
    record = folder = None
    if last.startswith("record: "):
        path = Path(last.removeprefix("record: "))
        record, folder = json.loads(path.read_text()), path.parent
    return Finished(code, out.getvalue(), err.getvalue(), record, folder)


def runner(results: Path) -> Callable[..., Finished]:
    """`run(*words)`: the words as flags of one command, with results below `results`."""

    def run(*words: str) -> Finished:
        return call([*words, "--results_path", str(results), "--num_threads", "1", "--non_verbose"])

    return run


@contextlib.contextmanager
def plugins_forgotten():
    """Forget at the end which plug-ins were imported and what they registered, as if in another process."""
    modules, entries = set(sys.modules), [dict(registry.entries()) for registry in REGISTRIES]
    try:
        yield
    finally:
        for registry, before in zip(REGISTRIES, entries, strict=True):
            registry._entries = before
        FAILED_FILES.clear()
        for name in set(sys.modules) - modules:
            if name.startswith(("plugins_", "my_package")):
                del sys.modules[name]


def refuse_to_train(monkeypatch):
    monkeypatch.setattr(Training, "run", lambda *args: pytest.fail("trained again"))


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


@pytest.fixture
def results(tmp_path):
    """Where runs are written; does not exist until one is."""
    return tmp_path / "results"


@pytest.fixture
def run_main(results):
    return runner(results)


@pytest.fixture(scope="session")
def straight(tmp_path_factory):
    """What the command of `stopped_runs` leaves when nothing happens to it."""
    from stopped_runs import RUN

    results = tmp_path_factory.mktemp("straight")
    assert runner(results)(*RUN).code == 0
    return outcome(results)
