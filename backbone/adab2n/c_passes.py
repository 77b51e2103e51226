"""The four passes over the activation in C (`cpu_passes.c`), for CPUs that have a C compiler.

The source is compiled when a process first needs it, which takes a second, and kept in the user's cache folder.
Without a compiler, `weighted.TensorPasses` does the same work more slowly.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .weighted import Coefficients, Gradients, Moments, Statistics, TensorPasses, compute_dtype

SOURCE = Path(__file__).with_name("cpu_passes.c")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
C_TYPES = {torch.float32: "float", torch.float64: "double"}


@cache
def compile_error() -> str | None:
    """Return in one line why the passes cannot be compiled on this machine, or None if they can."""
    try:
        for dtype in C_TYPES:
            _library(dtype)
    except (OSError, RuntimeError) as error:
        return str(error)
    return None


@cache
def _library(dtype: torch.dtype) -> ctypes.CDLL:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("no C compiler found")
    command = [*compiler.split(), *FLAGS, f"-DT={C_TYPES[dtype]}", str(SOURCE)]
    # Machines may share a cache: what is compiled for one processor does not run on another.
    key = hashlib.sha256("\n".join([*command, SOURCE.read_text(), _processor()]).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adab2n"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"cpu_passes-{key}.so"
    if not path.exists():
        _compile(command, path)
    return ctypes.CDLL(str(path))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def _compile(command: list[str], path: Path) -> None:
    """Compile to a temporary file and rename it, so that no process loads half a library."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        output = Path(folder) / path.name
        done = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
        output.replace(path)


def _call(name: str, dtype: torch.dtype, *arguments: Tensor | float | None) -> None:
    """Call a C function: tensors are passed as pointers, integers as long, floats as double."""
    converted: list[Any] = []
    for argument in arguments:
        if isinstance(argument, float):
            converted.append(ctypes.c_double(argument))
        elif isinstance(argument, int):
            converted.append(ctypes.c_long(argument))
        else:
            converted.append(ctypes.c_void_p(None if argument is None else argument.data_ptr()))
    getattr(_library(dtype), name)(*converted)


def _sizes(a: Tensor) -> tuple[int, int, int]:
    n, c = a.shape[:2]
    return n, c, a.numel() // (n * c)


def _doubles(count: int) -> Tensor:
    """Return so many doubles of working memory."""
    return torch.empty(count, dtype=torch.float64)


class CPasses(TensorPasses):
    """The passes in C, in float32 or float64, to which half-precision activations are converted."""

    name = "compiled"

    @staticmethod
    def moments(a: Tensor, *, exact: bool) -> tuple[Tensor, Tensor, Tensor]:
        a = a.to(compute_dtype(a))
        n, c, s = _sizes(a)
        guess, distance, squares = a.new_empty(c), a.new_empty(n, c), a.new_empty(n, c)
        _call("moments", a.dtype, a, guess, distance, squares, _doubles(n * c), n, c, s, torch.get_num_threads())
        return guess, distance, squares

    @staticmethod
    def statistics(moments: Moments, gamma: Tensor, beta: Tensor, eps: float) -> Statistics:
        guess, distance, squares, weights, same_group, area = moments
        if same_group is not None:
            return TensorPasses.statistics(moments, gamma, beta, eps)
        n, c = distance.shape
        stats = Statistics(*(guess.new_empty(c) for _ in Statistics._fields))
        inputs = guess, distance, squares, weights, gamma, beta
        _call("statistics", guess.dtype, *inputs, *stats, _doubles(2 * c), n, c, float(area), eps)
        return stats

    @staticmethod
    def scale_and_shift(a: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        dtype, a = a.dtype, a.to(compute_dtype(a))
        out = torch.empty_like(a)
        _call("scale_and_shift", a.dtype, a, scale, shift, out, *_sizes(a), torch.get_num_threads())
        return out.to(dtype)

    @staticmethod
    def gradient_sums(g: Tensor, a: Tensor, mu: Tensor, *, per_sample: bool) -> tuple[Tensor, Tensor]:
        g, a = g.to(mu.dtype), a.to(mu.dtype)
        n, c, s = _sizes(a)
        shape = (n, c) if per_sample else (c,)
        total, products, working = a.new_empty(shape), a.new_empty(shape), _doubles(2 * n * c)
        _call(
            "gradient_sums", a.dtype, g, a, mu, total, products, working, n, c, s, per_sample, torch.get_num_threads()
        )
        return total, products

    @staticmethod
    def coefficients(gradients: Gradients, moments: Moments, stats: Statistics) -> Coefficients:
        if moments.same_group is not None:
            return TensorPasses.coefficients(gradients, moments, stats)
        guess, distance, squares, weights, _, area = moments
        n, c = distance.shape
        parts = Coefficients(guess.new_empty(c), guess.new_empty(n, c), guess.new_empty(n, c), guess.new_empty(n))
        g_mu, g_sigma2 = (None if g is None else g.contiguous() for g in (gradients.mu, gradients.sigma2))
        inputs = gradients.products, gradients.total, g_mu, g_sigma2, guess, distance, squares, weights
        statistics = stats.mu, stats.inverse, stats.scale
        _call("coefficients", guess.dtype, *inputs, *statistics, *parts, _doubles(3 * c), n, c, float(area))
        return parts

    @staticmethod
    def input_gradient(g: Tensor, a: Tensor, scale: Tensor, slope: Tensor, offset: Tensor) -> Tensor:
        dtype, g, a = a.dtype, g.to(scale.dtype), a.to(scale.dtype)
        out = torch.empty_like(a)
        _call("input_gradient", a.dtype, g, a, scale, slope, offset, out, *_sizes(a), torch.get_num_threads())
        return out.to(dtype)
