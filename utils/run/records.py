"""Records of runs, with a seal: a number counts only in the folder of its run, as it was written."""

from __future__ import annotations

import hashlib
import json
import platform
import resource
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from backbone.adab2n import __version__
from utils.config.resolve import Config
from utils.packages import version
from utils.run.identity import run_hash

if TYPE_CHECKING:
    from backbone.network import Network

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ("main.py", *(f"{folder}/*.py" for folder in ("backbone", "models", "datasets", "utils", "scripts")))


class BadRecord(Exception):
    """A record that is not what a run has written; the text says why."""


def seal_of(record: dict[str, Any]) -> str:
    content = {name: value for name, value in record.items() if name != "seal"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def read_record(path: Path) -> dict[str, Any] | None:
    """Return the record of the run in whose folder it lies, or None; raise BadRecord if it is not as it was written."""
    try:
        record = json.loads(path.read_bytes())
        sealed = record["seal"] == seal_of(record)
        name, hash_ = record["run"], run_hash(record["identity"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadRecord("it is damaged, or of an older version of this project") from None
    if not sealed:
        raise BadRecord("its seal does not match: it has been changed, or damaged")
    if name != path.parent.name or not name.endswith(f"-{hash_}"):
        raise BadRecord(f"it is of another run, {name}")
    return record


def provenance_text(record: dict[str, Any]) -> str:
    """Return when a record was made, and at which commit."""
    commit, plus, changes = (record["environment"]["commit"] or "unknown").partition("+")
    return f"on {record['date'][:16].replace('T', ' ')} UTC at commit {commit[:12]}{plus}{changes}"


def plain(config: Config) -> dict[str, Any]:
    json_types = int | float | str | tuple | None
    return {name: value if isinstance(value, json_types) else str(value) for name, value in config.values().items()}


def conditions(net: Network) -> dict[str, Any]:
    """Return what rounding depends on beside the command: under the same conditions a run has the same bits."""
    device, cpu = next(net.parameters()).device, f"cpu ({torch.backends.cpu.get_cpu_capability()})"
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "num_threads": torch.get_num_threads(),
        "norm_impl": net.norms.implementation(device),
        "torch": str(torch.__version__),
    }


def environment() -> dict[str, Any]:
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    return {
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "device_type": "cuda" if cuda else "cpu",
        "num_threads": torch.get_num_threads(),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "peak_cuda_memory_mb": round(torch.cuda.max_memory_allocated() / 2**20, 1) if cuda else None,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **{name: version(name) for name in ("torchvision", "numpy")},
        "version": __version__,
        "commit": commit(),
    }


def commit() -> str | None:
    """Return the commit, with `+changes` if the code differs from it; None if the checkout is no repository."""

    def git(*words: str) -> str:
        return subprocess.check_output(["git", *words], cwd=REPOSITORY, stderr=subprocess.DEVNULL, text=True).strip()

    try:
        if git("rev-parse", "--show-cdup"):  # the checkout lies below another repository
            return None
        changed = git("status", "--porcelain", "--untracked-files=no") or git("ls-files", "--others", "--", *SOURCES)
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
