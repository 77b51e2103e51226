"""Compiling the C passes: without a compiler runs use tensor operations and say so; what is compiled is kept."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from backbone.adab2n import c_passes
from tests.helpers import NEEDS_COMPILER

ROOT = Path(__file__).resolve().parents[2]
RUN = "main.py --model er --norm adab2n --dataset seq-digits --debug_mode --num_filters 2 --num_threads 1"


def run_with(compiler: str, cache: Path, *flags: str) -> subprocess.CompletedProcess:
    command = [sys.executable, *shlex.split(RUN), "--results_path", str(cache / "results"), *flags]
    environment = {"CC": compiler, "XDG_CACHE_HOME": str(cache), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_without_a_compiler_a_run_uses_tensor_operations_and_says_so(tmp_path):
    done = run_with("no-such-compiler", tmp_path)
    assert done.returncode == 0
    assert "tensor operations" in done.stderr


def test_compiled_passes_without_a_compiler_are_rejected(tmp_path):
    done = run_with("no-such-compiler", tmp_path, "--norm_impl", "compiled")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no-such-compiler" in done.stderr


@pytest.fixture
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for function in (c_passes._library, c_passes.compile_error):
        function.cache_clear()
    yield tmp_path / "adab2n"
    for function in (c_passes._library, c_passes.compile_error):
        function.cache_clear()


@NEEDS_COMPILER
def test_libraries_are_compiled_once_into_a_private_folder(fresh_cache, monkeypatch):
    assert c_passes.compile_error() is None
    assert fresh_cache.stat().st_mode & 0o777 == 0o700
    assert [path.suffix for path in fresh_cache.iterdir()] == [".so", ".so"]
    c_passes._library.cache_clear()
    c_passes.compile_error.cache_clear()
    monkeypatch.setattr(c_passes, "_compile", lambda *_: pytest.fail("compiled again"))
    assert c_passes.compile_error() is None


def test_a_failing_compiler_is_named(fresh_cache, monkeypatch):
    monkeypatch.setenv("CC", "false")
    assert "false failed" in c_passes.compile_error()
    assert list(fresh_cache.iterdir()) == []
