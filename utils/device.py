"""Devices and threads: which one a run uses, and how small host arrays get there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import torch

from utils.errors import UsageError

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def device_name(text: str) -> str:
    """Option type: auto, cpu, cuda or cuda:N."""
    import argparse

    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"must be auto, cpu, cuda or cuda:N, got {text!r}")
    return text


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device("cuda", 0) if name == "cuda" else torch.device(name)
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
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
    device = pick_device(config.device)
    if device.type == "cuda":
        # Kernels are launched on the current device, and what a record says of the machine is about it.
        torch.cuda.set_device(device)
    return device


def memory_of(device: torch.device) -> int:
    """Bytes that the device has; of the host, those that a container leaves of it."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(there, int(CONTAINER_LIMIT.read_bytes()))
    except (OSError, ValueError):  # no container, or one without a limit
        return there


def refuse_without_half(device: torch.device) -> None:
    """CPUs compute bfloat16 one way or another."""
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UsageError(f"--amp bfloat16: {torch.cuda.get_device_name(device)} cannot compute with it; leave it out")


def memory_format(channels_last: str) -> torch.memory_format:
    """The layout of activations that `--channels_last` names.

    `auto` is contiguous for every norm on every device: of steps on a CPU (`python -m scripts.bench layout`) those of
    the full width take the same time in either; in narrow networks BN's and AdaB2N's gain 4 to 14 % by channels-last
    and GN's lose 3 to 6 %, which is not worth other last bits. No GPU has been measured.
    """
    return torch.channels_last if channels_last == "yes" else torch.contiguous_format


def refuse_corrupting_convolutions(net: torch.nn.Module, device: torch.device) -> None:
    """oneDNN's backward of 1x1 convolutions with a stride, in channels-last, writes past its working space where its
    blocks have room for more channels than there are (uxlfoundation/oneDNN#6035): gradients are wrong, or the process
    hangs or crashes. With AVX2's blocks of 8, the smallest that was found:

        x = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
        w = torch.randn(8, 4, 1, 1, requires_grad=True)
        F.conv2d(x, w, stride=2).sum().backward()    # with two threads; ONEDNN_MAX_CPU_ISA=AVX2 where there is more
    """
    block = 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8
    for layer in net.modules():
        if device.type == "cpu" and isinstance(layer, torch.nn.Conv2d) and layer.weight.dtype != torch.float64:
            channels, strided = layer.in_channels // layer.groups, layer.kernel_size == (1, 1) and max(layer.stride) > 1
            if strided and channels < block:
                raise UsageError(
                    f"--channels_last yes: oneDNN spoils 1x1 convolutions with a stride and fewer than {block} "
                    f"channels, and the network has one with {channels}: leave it out, or make the network wider"
                )


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A small host array as a tensor on the device, without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def send_together(arrays: list[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Small int64 host arrays as tensors on the device, in one copy and without waiting for it."""
    arrays = [np.ascontiguousarray(array, dtype=np.int64) for array in arrays]
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    flat = to_device(np.concatenate([array.ravel() for array in arrays]), device)
    parts = flat.split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
