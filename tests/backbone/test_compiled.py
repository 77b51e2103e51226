"""Compiling the passes: where it cannot be done, runs go on with tensor operations, and say so."""

import subprocess
import sys
from pathlib import Path

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
def test_damaged_library_is_compiled_again(tmp_path):
    assert run_with("cc", tmp_path, "--norm_impl", "compiled").returncode == 0
    for path in tmp_path.glob("adab2n-bench/*"):
        path.write_bytes(path.read_bytes()[:1000])
    done = run_with("cc", tmp_path, "--norm_impl", "compiled", "--seed", "1")
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_size > 1000 for path in tmp_path.glob("adab2n-bench/*"))


@NEEDS_COMPILER
def test_a_second_process_finds_the_compiled_passes(tmp_path):
    assert run_with("cc", tmp_path, "--norm_impl", "compiled").returncode == 0
    libraries = {path: path.stat().st_mtime_ns for path in (tmp_path).glob("adab2n-bench/*")}
    assert sorted(path.suffix for path in libraries) == [".so", ".so"]
    assert run_with("cc", tmp_path, "--norm_impl", "compiled", "--seed", "1").returncode == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path).glob("adab2n-bench/*")} == libraries
