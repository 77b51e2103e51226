"""Description of the machine that a benchmark ran on: hardware and versions, but neither host name nor paths."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import torch

from utils.packages import version
from utils.run.records import commit

CPU_INFO = Path("/proc/cpuinfo")


def description(threads: int) -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": threads,
        "load": round(os.getloadavg()[0], 1),  # over the last minute, the benchmark's own threads included
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": version("triton"),
        "commit": commit(),
    }


def cpu_model() -> str:
    model = re.search(r"^model name\s*:\s*(.+)$", CPU_INFO.read_text(), re.MULTILINE) if CPU_INFO.exists() else None
    return model[1] if model else platform.processor() or platform.machine()


def has_bfloat16() -> bool:
    """Return whether the hardware computes in bfloat16, so that it may be faster."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return hasattr(torch.cpu, "_is_avx512_bf16_supported") and torch.cpu._is_avx512_bf16_supported()
