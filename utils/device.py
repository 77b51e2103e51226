"""Devices and threads: which one a run uses, and how small host arrays get there."""

from __future__ import annotations

import os
import re

import numpy as np
import torch

from utils.errors import UsageError


def device_name(text: str) -> str:
    """Option type: auto, cpu, cuda or cuda:N."""
    import argparse

    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"must be auto, cpu, cuda or cuda:N, got {text!r}")
    return text


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices; use --device auto"
        )
    return device


def set_up_device(config) -> torch.device:
    """The run's device, with threads and determinism as asked for."""
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    if config.deterministic:
        # cuBLAS reads this when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    return pick_device(config.device)


def memory_format(channels_last: str) -> torch.memory_format:
    """The layout of activations that `--channels_last` names.

    `auto` is contiguous on every device: on CPUs channels-last is a few percent faster with BN, but the backward of
    torch 2.14's oneDNN convolutions corrupts memory there with few channels and several threads.
    """
    return torch.channels_last if channels_last == "yes" else torch.contiguous_format


def to_device(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """A small host array as a tensor of `like`'s type and device, without waiting for the device."""
    tensor = torch.from_numpy(np.ascontiguousarray(array)).to(like.dtype)
    if like.device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(like.device, non_blocking=True)
