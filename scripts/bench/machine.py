"""What a benchmark ran on: kinds and versions, nothing that names a machine or a place on it."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import torch

from utils.packages import version
from utils.run.records import commit

CPU_FACTS = Path("/proc/cpuinfo")


def description(threads: int) -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": threads,
        "load": round(os.getloadavg()[0], 1),  # of the last minute: the benchmark's own threads, and what ran beside it
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": version("triton"),
        "commit": commit(),
    }


def cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", CPU_FACTS.read_text(), re.MULTILINE) if CPU_FACTS.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def has_bfloat16() -> bool:
    """In hardware, so that it may be faster."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() if hasattr(torch.cpu, "_is_avx512_bf16_supported") else False
