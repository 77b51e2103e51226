"""Devices and threads: which device a run uses, and how small host arrays get there."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import numpy as np
import torch

from utils.errors import UsageError

if TYPE_CHECKING:
    from utils.config.resolve import Config


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise UsageError(f"--device must be auto, cpu, cuda or cuda:N (got {name[:80]!r})")
    device = torch.device("cuda", 0) if name == "cuda" else torch.device(name)
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
        raise UsageError(f"--device {name} not found ({torch.cuda.device_count()} CUDA devices); use --device auto")
    return device


def set_up_device(config: Config) -> torch.device:
    """Return the run's device, after setting threads, determinism and the current CUDA device."""
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    device = pick_device(config.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # kernels are launched there, and records describe it
        if config.amp != "none" and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise UsageError(f"--amp {config.amp} is not supported by {torch.cuda.get_device_name(device)}; remove it")
    return device


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
