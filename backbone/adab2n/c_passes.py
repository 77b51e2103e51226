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

import torch
from torch import Tensor

from .weighted import Coefficients, Moments, Statistics, TensorPasses, compute_dtype, scratch

SOURCE = Path(__file__).with_name("cpu_passes.c")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
C_TYPES = {torch.float32: "float", torch.float64: "double"}


class CompileError(Exception):
    """The message is one line that says why the passes cannot be compiled."""


@cache
def compile_error() -> str | None:
    """Return why the passes cannot be compiled on this machine, or None if they can."""
    try:
        for dtype in C_TYPES:
            _library(dtype)
    except CompileError as error:
        return str(error)
    return None


@cache
def _library(dtype: torch.dtype) -> ctypes.CDLL:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise CompileError("no C compiler found")
    command = [*compiler.split(), *FLAGS, f"-DT={C_TYPES[dtype]}", str(SOURCE)]
    # Machines may share a cache: what is compiled for one processor does not run on another.
    key = hashlib.sha256("\n".join([*command, SOURCE.read_text(), _processor()]).encode()).hexdigest()[:16]
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adab2n"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"cpu_passes-{key}.so"
        if not path.exists():
            _compile(command, path)
        return _load(path)
    except (OSError, RuntimeError) as error:  # no home folder, no room, or a file that cannot be loaded
        raise CompileError(f"the compiled norm layers cannot be kept or loaded ({error}); set XDG_CACHE_HOME") from None


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
            raise CompileError(f"{command[0]} failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
        output.replace(path)


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    pointer, size, integer, double = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_double
    sizes = [size, size, size]  # N, C, S
    signatures = {
        "moments": [pointer] * 5 + sizes + [integer],
        "scale_and_shift": [pointer] * 4 + sizes + [integer],
        "gradient_sums": [pointer] * 6 + sizes + [integer] * 2,
        "input_gradient": [pointer] * 6 + sizes + [integer],
        "statistics": [pointer] * 12 + [size, size, double, double],
        "coefficients": [pointer] * 16 + [size, size, double],
    }
    for name, types in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
    return library


def _sizes(a: Tensor) -> tuple[int, int, int]:
    n, c = a.shape[:2]
    return n, c, a.numel() // (n * c)


def _scratch_doubles(count: int) -> int:
    """Return the address of so many doubles of working memory."""
    return scratch(torch.float64, torch.device("cpu"), count).data_ptr()


class CPasses(TensorPasses):
    """The passes in C, in float32 or float64, to which half-precision activations are converted."""

    name = "compiled"

    @staticmethod
    def moments(a: Tensor, *, exact: bool) -> Moments:
        a = a.to(compute_dtype(a))
        n, c, s = _sizes(a)
        guess, distance, squares = a.new_empty(c), a.new_empty(n, c), a.new_empty(n, c)
        _library(a.dtype).moments(
            a.data_ptr(), guess.data_ptr(), distance.data_ptr(), squares.data_ptr(), _scratch_doubles(n * c),
            n, c, s, torch.get_num_threads(),
        )  # fmt: skip
        return guess, distance, squares

    @staticmethod
    def scale_and_shift(a: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        dtype, a = a.dtype, a.to(compute_dtype(a))
        out = torch.empty_like(a)
        _library(a.dtype).scale_and_shift(
            a.data_ptr(), scale.data_ptr(), shift.data_ptr(), out.data_ptr(), *_sizes(a), torch.get_num_threads()
        )
        return out.to(dtype)

    @staticmethod
    def gradient_sums(g: Tensor, a: Tensor, mu: Tensor, *, per_sample: bool) -> tuple[Tensor, Tensor]:
        g, a = g.to(mu.dtype), a.to(mu.dtype)
        n, c, s = _sizes(a)
        shape = (n, c) if per_sample else (c,)
        total, products = a.new_empty(shape), a.new_empty(shape)
        _library(a.dtype).gradient_sums(
            g.data_ptr(), a.data_ptr(), mu.data_ptr(), total.data_ptr(), products.data_ptr(),
            _scratch_doubles(2 * n * c), n, c, s, per_sample, torch.get_num_threads(),
        )  # fmt: skip
        return total, products

    @staticmethod
    def input_gradient(g: Tensor, a: Tensor, scale: Tensor, slope: Tensor, offset: Tensor) -> Tensor:
        dtype, g, a = a.dtype, g.to(scale.dtype), a.to(scale.dtype)
        out = torch.empty_like(a)
        _library(a.dtype).input_gradient(
            g.data_ptr(), a.data_ptr(), scale.data_ptr(), slope.data_ptr(), offset.data_ptr(), out.data_ptr(),
            *_sizes(a), torch.get_num_threads(),
        )  # fmt: skip
        return out.to(dtype)

    @staticmethod
    def statistics(
        moments: Moments, weights: Tensor, same_group: Tensor | None, gamma: Tensor, beta: Tensor, area: int, eps: float
    ) -> Statistics:
        guess, distance, squares = moments
        if same_group is not None or not _fits(guess, weights, gamma, beta):
            return TensorPasses.statistics(moments, weights, same_group, gamma, beta, area, eps)
        n, c = distance.shape
        stats = Statistics(*(guess.new_empty(c) for _ in Statistics._fields))
        _library(guess.dtype).statistics(
            guess.data_ptr(), distance.data_ptr(), squares.data_ptr(), weights.data_ptr(), gamma.data_ptr(),
            beta.data_ptr(), *(tensor.data_ptr() for tensor in stats), _scratch_doubles(2 * c), n, c, area, eps,
        )  # fmt: skip
        return stats

    @staticmethod
    def coefficients(
        sums: tuple[Tensor, Tensor],
        g_mu: Tensor | None,
        g_sigma2: Tensor | None,
        moments: Moments,
        weights: Tensor,
        same_group: Tensor | None,
        stats: Statistics,
        area: int,
    ) -> Coefficients:
        (d_beta, d_scale), (guess, distance, squares) = sums, moments
        if same_group is not None or not _fits(guess, d_beta, d_scale, weights, g_mu, g_sigma2):
            return TensorPasses.coefficients(sums, g_mu, g_sigma2, moments, weights, same_group, stats, area)
        n, c = distance.shape
        parts = Coefficients(guess.new_empty(c), guess.new_empty(n, c), guess.new_empty(n, c), guess.new_empty(n))
        inputs = (d_scale, d_beta, g_mu, g_sigma2, guess, distance, squares, weights)
        tensors = (*inputs, stats.mu, stats.inverse, stats.scale, *parts)
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        _library(guess.dtype).coefficients(*pointers, _scratch_doubles(3 * c), n, c, area)
        return parts


def _fits(like: Tensor, *tensors: Tensor | None) -> bool:
    """Return whether C can take the tensors as they are: of its own types, without gaps."""
    return like.dtype in C_TYPES and all(
        tensor is None or (tensor.dtype == like.dtype and tensor.is_contiguous()) for tensor in tensors
    )
