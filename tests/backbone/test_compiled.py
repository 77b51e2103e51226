"""Compiling the passes: where it cannot be done, runs go on with tensor operations, and say so. What was compiled is
loaded only if nobody but this user can have written it."""

import hashlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from backbone.norms.kernels import compiled_passes
from tests.helpers import NEEDS_COMPILER

ROOT = Path(__file__).resolve().parents[2]

RUN = [
    "main.py",
    "--model",
    "er",
    "--norm",
    "adab2n",
    "--dataset",
    "seq-digits",
    "--debug_mode",
    "--num_filters",
    "2",
    "--num_threads",
    "1",
]


def run_with(compiler: str, cache, *flags: str) -> subprocess.CompletedProcess:
    environment = {"CC": compiler, "XDG_CACHE_HOME": str(cache), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, *RUN, "--results_path", str(cache / "results"), *flags],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_compiler_a_run_says_that_it_uses_tensor_operations(tmp_path):
    done = run_with("no-such-compiler", tmp_path)
    assert done.returncode == 0
    assert "note: no-such-compiler could not be run" in done.stderr
    assert "norm layers use tensor operations" in done.stderr


def test_compiled_passes_without_a_compiler_are_refused(tmp_path):
    done = run_with("no-such-compiler", tmp_path, "--norm_impl", "compiled")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: --norm_impl compiled needs a CPU and a C compiler (no-such-compiler could not"
    )
    assert done.stderr.count("\n") == 1


def test_what_the_compiler_says_is_passed_on(tmp_path):
    done = run_with("false", tmp_path, "--norm_impl", "compiled")
    assert done.returncode == 2
    assert "false failed: no message" in done.stderr


@NEEDS_COMPILER
def test_a_second_process_finds_the_compiled_passes(tmp_path):
    assert run_with("cc", tmp_path, "--norm_impl", "compiled").returncode == 0
    libraries = {path: path.stat().st_mtime_ns for path in (tmp_path).glob("adab2n-bench/*")}
    assert sorted(path.suffix for path in libraries) == [".so", ".so"]
    assert run_with("cc", tmp_path, "--norm_impl", "compiled", "--seed", "1").returncode == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path).glob("adab2n-bench/*")} == libraries


# --- who may have written it ----------------------------------------------------------------------------------

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
POISON = """
#include <fcntl.h>
__attribute__((constructor)) static void run(void) { open(MARK, O_CREAT | O_WRONLY, 0600); }
void moments(void) {} void scale_and_shift(void) {} void gradient_sums(void) {}
void input_gradient(void) {} void statistics(void) {} void coefficients(void) {}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with a library, and one that leaves a file `ran` behind when it is loaded."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "poison.c").write_text(POISON)
    mark = f'-DMARK="{folder / "ran"}"'
    for source, library, flag in ((compiled_passes.SOURCE, "good.so", "-DT=float"), ("poison.c", "poison.so", mark)):
        words = ["cc", "-fopenmp", "-shared", "-fPIC", flag, str(source), "-o", library]
        subprocess.run(words, cwd=folder, check=True)
    return folder


class Cache:
    """A cache folder, and a compiler that takes no time: it copies a library and leaves a line in a log."""

    def __init__(self, place: Path, built: Path):
        self.folder, self.built = place / "home" / "cache" / "adab2n-bench", built
        self.temporary, self.compiler, self.log, self.said = (place / name for name in ("tmp", "cc", "log", "said"))
        self.temporary.mkdir()
        script = f'#!/bin/sh\nfor last; do :; done\necho >> {self.log}; cp {built}/good.so "$last"\n'
        self.compiler.write_text(script)
        self.compiler.chmod(0o700)

    def load(self, processes: int = 1) -> tuple[int, str]:
        """So many new processes load both libraries at once: how often they compiled, and what they said."""
        for path in (self.log, self.said, self.built / "ran"):
            path.write_text("")
        (self.built / "ran").unlink()
        fork = multiprocessing.get_context("fork")
        children = [fork.Process(target=self._load) for _ in range(processes)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0] * processes
        assert list(self.temporary.iterdir()) == []
        return len(self.log.read_text()), self.said.read_text()

    def _load(self) -> None:
        sys.stderr = open(self.said, "a")  # noqa: SIM115 (the process ends)
        compiled_passes._library.cache_clear()
        assert compiled_passes.why_not.__wrapped__() is None

    @property
    def libraries(self) -> list[Path]:
        return list(self.folder.iterdir())

    def poison(self) -> None:
        """What is in the files is whole, and not what was compiled."""
        content = (self.built / "poison.so").read_bytes()
        for path in self.libraries:
            path.write_bytes(content + hashlib.sha256(content).digest())

    @property
    def poisoned(self) -> bool:
        return (self.built / "ran").exists()


@pytest.fixture
def cache(built, tmp_path, monkeypatch):
    cache = Cache(tmp_path, built)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.folder.parent))
    monkeypatch.setenv("CC", str(cache.compiler))
    monkeypatch.setattr(tempfile, "tempdir", str(cache.temporary))
    monkeypatch.setattr(compiled_passes, "_noted", False)
    return cache


def modes(cache: Cache) -> list[str]:
    places = (cache.folder.parents[1], cache.folder.parent, cache.folder, *cache.libraries)
    return [f"{path.lstat().st_mode & 0o777:o}" for path in places]


@NEEDS_COMPILER
@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_cache_is_open_to_this_user_alone_whatever_the_umask(cache, umask):
    before = os.umask(umask)
    try:
        assert cache.load() == (2, "")
    finally:
        os.umask(before)
    assert modes(cache) == ["700", "700", "700", "600", "600"]
    assert cache.load() == (0, "")


@NEEDS_COMPILER
def test_this_users_own_library_is_loaded_whatever_is_in_it(cache):
    """So that what must not be loaded below is known to show."""
    cache.load()
    cache.poison()
    assert cache.load() == (0, "")
    assert cache.poisoned


def cut_off(cache):
    for path in cache.libraries:
        path.write_bytes(path.read_bytes()[:1000])


def given_away(cache):
    for path in cache.libraries:
        os.chown(path, NOBODY, NOBODY)


def writable_by_all(cache):
    for path in cache.libraries:
        path.chmod(0o606)


def writable_by_the_group(cache):
    for path in cache.libraries:
        path.chmod(0o660)


def linked(cache):
    for path in cache.libraries:
        elsewhere = path.rename(cache.folder.parent / path.name)
        path.symlink_to(elsewhere)


def in_a_folder_of_the_group(cache):
    cache.folder.chmod(0o770)


DOUBTFUL = [cut_off, pytest.param(given_away, marks=AS_ROOT), writable_by_all, writable_by_the_group, linked,
            in_a_folder_of_the_group]  # fmt: skip


@NEEDS_COMPILER
@pytest.mark.parametrize("doubtful", DOUBTFUL)
def test_doubtful_library_is_not_loaded_but_replaced(cache, doubtful):
    cache.load()
    cache.poison()
    doubtful(cache)
    assert cache.load() == (2, "")
    assert modes(cache)[2:] == ["700", "600", "600"]
    assert cache.load() == (0, "")
    assert not cache.poisoned


def another_users_folder(cache, monkeypatch):
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    return "belongs to another user"


def folder_given_away(cache, monkeypatch):
    os.chown(cache.folder, NOBODY, NOBODY)
    return f"{cache.folder} belongs to another user"


def linked_folder(cache, monkeypatch):
    cache.folder.rename(cache.folder.parent / "elsewhere")
    cache.folder.symlink_to(cache.folder.parent / "elsewhere")
    return f"{cache.folder} belongs to another user or is a link"


def folder_that_others_can_exchange(cache, monkeypatch):
    cache.folder.parent.chmod(0o777)
    return f"others can write to {cache.folder.parent}"


def folder_whose_parent_was_given_away(cache, monkeypatch):
    os.chown(cache.folder.parents[1], NOBODY, NOBODY)
    return f"{cache.folder.parents[1]} belongs to another user"


def no_place_for_a_folder(cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.compiler))
    return f"File exists: '{cache.compiler}"


def no_home(cache, monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", home)
    return "Could not determine home directory"


DISTRUSTED = [another_users_folder, pytest.param(folder_given_away, marks=AS_ROOT), linked_folder,
              folder_that_others_can_exchange, pytest.param(folder_whose_parent_was_given_away, marks=AS_ROOT),
              no_place_for_a_folder, no_home]  # fmt: skip


@NEEDS_COMPILER
@pytest.mark.parametrize("distrusted", DISTRUSTED)
def test_without_a_folder_to_trust_every_process_compiles_for_itself_and_says_why(cache, distrusted, monkeypatch):
    cache.load()
    cache.poison()
    written = [path.stat().st_mtime_ns for path in cache.libraries]
    reason = distrusted(cache, monkeypatch)
    for _ in range(2):
        compiled, said = cache.load()
        assert (compiled, said.count("\n")) == (2, 1)
        assert said.startswith("note: compiled norm layers are not kept for later runs (")
        assert reason in said
    assert not cache.poisoned
    assert [path.stat().st_mtime_ns for path in cache.libraries] == written


@NEEDS_COMPILER
def test_folder_below_a_sticky_one_is_trusted(cache):
    cache.folder.parent.mkdir(parents=True)
    cache.folder.parent.chmod(0o1777)
    assert [cache.load(), cache.load()] == [(2, ""), (0, "")]


@NEEDS_COMPILER
def test_processes_may_compile_at_the_same_time(cache):
    cache.compiler.write_text(cache.compiler.read_text() + "sleep 0.3\n")
    compiled, said = cache.load(processes=4)
    assert compiled > 2  # or they were not at the same time
    assert said == ""
    assert cache.load() == (0, "")
