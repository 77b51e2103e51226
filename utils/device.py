"""Devices and threads: which device a run uses, and how small host arrays get there."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from utils.errors import UsageError

if TYPE_CHECKING:
    from utils.config.resolve import Config

# In descending order, by the names of Linux.
INSTRUCTION_SETS = ("amx_fp16", "amx_bf16", "avx512_fp16", "avx512_bf16", "avx512_vnni", "avx512bw", "avx_vnni_int8",
                    "avx_vnni", "avx2", "avx", "sse4_1")  # fmt: skip


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "cpu" and (reason := driver_error()):
            raise UsageError(f"a GPU is there, but torch cannot use it ({reason}); give --device cpu to run without")
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise UsageError(f"--device must be auto, cpu, cuda or cuda:N (got {name[:80]!r})")
    device = torch.device("cuda", 0) if name == "cuda" else torch.device(name)
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
        raise UsageError(f"--device {name} not found ({torch.cuda.device_count()} CUDA devices); use --device auto")
    if device.type == "cuda":
        check_architecture(device)
    return device


def driver_error() -> str | None:
    """Return why torch cannot use a GPU though its driver is installed, or None."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        return reason if "too old" in reason else None
    return None


def check_architecture(device: torch.device) -> None:
    """Raise UsageError if the GPU is older than those that this build of torch has kernels for."""
    versions = [int(match[1]) for name in torch.cuda.get_arch_list() if (match := re.fullmatch(r"sm_(\d+)", name))]
    major, minor = torch.cuda.get_device_capability(device)
    if versions and 10 * major + minor < min(versions):
        gpu = f"{torch.cuda.get_device_name(device)} (sm_{major}{minor})"
        advice = "install a build of torch for it, or give --device cpu"
        raise UsageError(f"{gpu} is older than this build of torch supports (from sm_{min(versions)}); {advice}")


def keep_freed_memory() -> None:
    """Let glibc keep the memory of freed activations, which it returns to the system after every batch otherwise.

    A run on CIFAR with a narrow network takes 0.88 of the time. The variables of glibc's manual win.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    for variable, parameter in (("MALLOC_TRIM_THRESHOLD_", -1), ("MALLOC_MMAP_THRESHOLD_", -3)):
        if mallopt and variable not in os.environ:
            mallopt(parameter, 2**30)


def set_up_device(config: Config) -> torch.device:
    """Return the run's device, after setting threads, memory, determinism and the current CUDA device."""
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
        torch.use_deterministic_algorithms(True)
        # Otherwise torch fills all new memory, in hundreds of launches a step that no result needs.
        setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
        torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.tf32
    device = pick_device(config.device)
    if device.type == "cpu":
        keep_freed_memory()
    if device.type == "cuda":
        torch.cuda.set_device(device)  # kernels are launched there, and records describe it
        if config.amp != "none" and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise UsageError(f"--amp {config.amp} is not supported by {torch.cuda.get_device_name(device)}; remove it")
    return device


def describe_device(device: torch.device, config: Config) -> str:
    """Return the line at the start of a run: device, precision, and on CUDA whether steps are compiled."""
    precision = config.dtype if config.amp == "none" else f"{config.dtype} with {config.amp}"
    if device.type == "cpu":
        threads = torch.get_num_threads()
        return f"device cpu, {precision}, {threads} thread{'s' if threads > 1 else ''}" + ", compiled" * config.compile
    compiled = "compiled" if config.compile else "not compiled (--compile is faster in long runs)"
    tf32 = "on" if config.tf32 else "off"
    return f"device {device} ({torch.cuda.get_device_name(device)}), {precision}, TF32 {tf32}, {compiled}"


@cache
def instruction_set() -> str:
    """Return vendor and highest instruction set of the processor, by which MKL and oneDNN choose their kernels."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    vendor, flags = (re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE) for name in ("vendor_id", "flags"))
    highest = [name for name in INSTRUCTION_SETS if flags and name in flags[1].split()]
    return f"{vendor[1]} {highest[0]}" if vendor and highest else platform.machine()


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return a small host array as a tensor on the device, without waiting for the copy."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def send_together(arrays: list[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Return small int64 host arrays as tensors on the device, in one copy and without waiting for it."""
    arrays = [np.ascontiguousarray(array, dtype=np.int64) for array in arrays]
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    flat = to_device(np.concatenate([array.ravel() for array in arrays]), device)
    parts = flat.split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
