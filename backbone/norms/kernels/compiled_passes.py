"""The four passes over the activation in C (`cpu_passes.c`), for CPUs that have a C compiler beside them.

The source is compiled when a process first needs it, which takes a second, and kept in the user's cache folder. What is
loaded runs as this user, so only what this user wrote is: where others could have their hands in, every process
compiles for itself. Without a compiler `fused.TensorPasses` do the same work, in about twice the time in channels-last.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch

from backbone.norms.kernels.fused import Coefficients, Statistics, TensorPasses, is_channels_last, scratch
from backbone.norms.kernels.weighted import compute_dtype
from utils.files import write_atomically

SOURCE = Path(__file__).with_name("cpu_passes.c")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
OTHERS, WRITABLE_BY_OTHERS = 0o077, 0o022  # bits of a mode; access lists that give others more show in them too
DIGEST = hashlib.sha256().digest_size
C_TYPES = {torch.float32: "float", torch.float64: "double"}


class CannotCompile(Exception):
    """One line that says why."""


@cache
def why_not() -> str | None:
    """None if the passes can be compiled here."""
    try:
        for dtype in C_TYPES:
            _library(dtype)
    except CannotCompile as problem:
        return str(problem)
    return None


@cache
def _library(dtype: torch.dtype) -> ctypes.CDLL:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise CannotCompile("no C compiler found")
    command = [*compiler.split(), *FLAGS, f"-DT={C_TYPES[dtype]}", str(SOURCE)]
    # A cache may be shared by machines: what is compiled for one processor is not for another.
    key = hashlib.sha256("\n".join([*command, SOURCE.read_text(), _processor()]).encode()).hexdigest()[:16]
    name = f"cpu_passes-{key}.so"
    kept = _found(name)
    return _loaded(kept) if kept else _compiled(command, name)


def _found(name: str) -> Path | None:
    try:
        library = _cache_folder() / name
        return library if _is_trusted(library) else None
    except OSError:
        return None


def _is_trusted(library: Path) -> bool:
    """This user's, for nobody else to write, and whole: its last bytes are the digest of the rest, for to load a file
    that was cut short would end the process. Root, too, trusts nobody else's."""
    with open(library, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
        status, content = os.fstat(file.fileno()), file.read()
    ours = status.st_uid == os.geteuid() and not status.st_mode & WRITABLE_BY_OTHERS
    return ours and hashlib.sha256(content[:-DIGEST]).digest() == content[-DIGEST:]


def _cache_folder() -> Path:
    """A folder that is open to this user alone and that nobody else can exchange: what was checked in it is what will
    be loaded. OSError if it cannot be had."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "adab2n-bench"
    except RuntimeError as problem:
        raise OSError(problem) from None
    # From the root down: what lies in folders that only this user and root can change stays what it is.
    for place in (*reversed(folder.parents), folder):
        place.mkdir(mode=0o700, exist_ok=True)  # one by one: `parents=True` leaves all but the last to the umask
        status = place.lstat()
        owner, mode = status.st_uid, status.st_mode
        if not stat.S_ISDIR(mode) or (owner != os.geteuid() and (owner != 0 or place == folder)):
            raise OSError(f"{place} belongs to another user or is a link")
        if place != folder and mode & WRITABLE_BY_OTHERS and not mode & stat.S_ISVTX:
            raise OSError(f"others can write to {place}")
    if mode & OTHERS:
        _tighten(folder, mode)
    return folder


def _tighten(folder: Path, mode: int) -> None:
    folder.chmod(0o700)
    if folder.lstat().st_mode & OTHERS:  # a file system without modes
        raise OSError(f"{folder} cannot be closed to others")
    if mode & WRITABLE_BY_OTHERS:  # what is in it may be theirs, or lead to a file of ours elsewhere
        for path in folder.glob("*cpu_passes-*"):
            path.unlink(missing_ok=True)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def _compiled(command: list[str], name: str) -> ctypes.CDLL:
    try:
        with tempfile.TemporaryDirectory() as private:  # may go once the library is loaded, which stays in memory
            library = Path(private) / name
            done = subprocess.run([*command, "-o", str(library)], capture_output=True, text=True, check=False)
            if done.returncode:
                raise CannotCompile(f"{command[0]} failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
            return _loaded(_kept(library))
    except OSError as problem:
        raise CannotCompile(f"{command[0]} could not be run: {problem.strerror}") from None


def _kept(library: Path) -> Path:
    """Its copy in the cache folder; itself if there can be none."""
    content = library.read_bytes()

    def write(file) -> None:
        os.fchmod(file.fileno(), 0o600)  # whatever the umask is
        file.write(content + hashlib.sha256(content).digest())

    try:
        kept = _cache_folder() / library.name
        write_atomically(kept, write)
    except OSError as problem:
        _note_once(f"compiled norm layers are not kept for later runs ({problem}); XDG_CACHE_HOME names another place")
        return library
    return kept


_noted = False


def _note_once(text: str) -> None:
    global _noted
    if not _noted:
        print(f"note: {text}", file=sys.stderr)
    _noted = True


def _loaded(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as problem:
        raise CannotCompile(f"what was compiled cannot be loaded: {problem}") from None
    pointer, size, integer = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
    sizes = [size, size, size, integer]  # N, C, S, channels-last
    library.moments.argtypes = [pointer] * 5 + sizes + [integer] * 2
    library.scale_and_shift.argtypes = [pointer] * 4 + sizes + [integer]
    library.gradient_sums.argtypes = [pointer] * 6 + sizes + [integer] * 2
    library.input_gradient.argtypes = [pointer] * 6 + sizes + [integer]
    library.statistics.argtypes = [pointer] * 12 + [size, size, ctypes.c_double, ctypes.c_double]
    library.coefficients.argtypes = [pointer] * 16 + [size, size, ctypes.c_double]
    for function in (
        library.moments,
        library.scale_and_shift,
        library.gradient_sums,
        library.input_gradient,
        library.statistics,
        library.coefficients,
    ):
        function.restype = None
    return library


def _sizes(a: torch.Tensor) -> tuple[int, int, int, int]:
    n, c = a.shape[:2]
    return n, c, a.numel() // (n * c), is_channels_last(a)


def _room(n: int, c: int) -> int:
    """Address of n x c doubles of working space."""
    return scratch(torch.float64, torch.device("cpu"), n * c).data_ptr()


class CompiledPasses(TensorPasses):
    """In float32 or float64, which half-precision activations are converted to."""

    name = "compiled"

    @staticmethod
    def moments(a, *, exact):
        a = a.to(compute_dtype(a))
        n, c, s, last = _sizes(a)
        guess, distance, squares = a.new_empty(c), a.new_empty(n, c), a.new_empty(n, c)
        _library(a.dtype).moments(
            a.data_ptr(), guess.data_ptr(), distance.data_ptr(), squares.data_ptr(), _room(n, c),
            n, c, s, last, exact, torch.get_num_threads(),
        )  # fmt: skip
        return guess, distance, squares

    @staticmethod
    def scale_and_shift(a, scale, shift):
        dtype, a = a.dtype, a.to(compute_dtype(a))
        out = torch.empty_like(a)
        _library(a.dtype).scale_and_shift(
            a.data_ptr(), scale.data_ptr(), shift.data_ptr(), out.data_ptr(), *_sizes(a), torch.get_num_threads()
        )
        return out.to(dtype)

    @staticmethod
    def gradient_sums(g, a, mu, *, per_sample):
        g, a = g.to(mu.dtype), a.to(mu.dtype)
        n, c, s, last = _sizes(a)
        shape = (n, c) if per_sample else (c,)
        total, products = a.new_empty(shape), a.new_empty(shape)
        _library(a.dtype).gradient_sums(
            g.data_ptr(), a.data_ptr(), mu.data_ptr(), total.data_ptr(), products.data_ptr(), _room(2 * n, c),
            n, c, s, last, per_sample, torch.get_num_threads(),
        )  # fmt: skip
        return total, products

    @staticmethod
    def input_gradient(g, a, scale, slope, offset):
        dtype, g, a = a.dtype, g.to(scale.dtype), a.to(scale.dtype)
        out = torch.empty_like(a)
        _library(a.dtype).input_gradient(
            g.data_ptr(), a.data_ptr(), scale.data_ptr(), slope.data_ptr(), offset.data_ptr(), out.data_ptr(),
            *_sizes(a), torch.get_num_threads(),
        )  # fmt: skip
        return out.to(dtype)

    @staticmethod
    def statistics(moments, weights, same_group, gamma, beta, area, eps):
        guess, distance, squares = moments
        if same_group is not None or not _same_type(guess, weights, gamma, beta):
            return TensorPasses.statistics(moments, weights, same_group, gamma, beta, area, eps)
        n, c = distance.shape
        found = Statistics(*(guess.new_empty(c) for _ in Statistics._fields))
        _library(guess.dtype).statistics(
            guess.data_ptr(), distance.data_ptr(), squares.data_ptr(), weights.data_ptr(), gamma.data_ptr(),
            beta.data_ptr(), *(tensor.data_ptr() for tensor in found), _room(2, c), n, c, area, eps,
        )  # fmt: skip
        return found

    @staticmethod
    def coefficients(sums, g_mu, g_sigma2, moments, weights, same_group, of, area):
        (d_beta, d_scale), (guess, distance, squares) = sums, moments
        if same_group is not None or not _same_type(guess, d_beta, d_scale, weights, g_mu, g_sigma2):
            return TensorPasses.coefficients(sums, g_mu, g_sigma2, moments, weights, same_group, of, area)
        n, c = distance.shape
        found = Coefficients(guess.new_empty(c), guess.new_empty(n, c), guess.new_empty(n, c), guess.new_empty(n))
        given = (d_scale, d_beta, g_mu, g_sigma2, guess, distance, squares, weights, of.mu, of.inverse, of.scale)
        _library(guess.dtype).coefficients(
            *(None if tensor is None else tensor.data_ptr() for tensor in (*given, *found)), _room(3, c), n, c, area
        )
        return found


def _same_type(like: torch.Tensor, *tensors: torch.Tensor | None) -> bool:
    """Whether C can take them as they are: its own types, without gaps."""
    return like.dtype in C_TYPES and all(
        tensor is None or (tensor.dtype == like.dtype and tensor.is_contiguous()) for tensor in tensors
    )
