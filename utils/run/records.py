"""Run folders, identities and records: the same command is the same run."""

from __future__ import annotations

import hashlib
import json
import platform
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from utils.config.arguments import Config, identity_options
from utils.data.stream import StreamSpec
from utils.errors import RunFailed, UsageError
from utils.files import HeldElsewhere, OwnedLock, write_json
from utils.packages import version

# Raised when a fix changes results, so that older records are not taken for those of today's code.
NUMERICS_VERSION = 2
REPOSITORY = Path(__file__).resolve().parents[2]


def run_identity(config: Config, spec: StreamSpec) -> dict[str, Any]:
    identity = identity_options(config) | {"numerics_version": NUMERICS_VERSION}
    return identity | ({"data": spec.fingerprint} if spec.fingerprint else {})


def run_hash(identity: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def run_name(config: Config, spec: StreamSpec) -> str:
    """Readable first, exact last: derpp-adab2n-seq-cifar100-online-m2000-s0-<hash>."""
    words = [config.model, config.norm, config.dataset, config.scenario]
    if "buffer_size" in config.values():
        words.append(f"m{config.buffer_size}")
    return "-".join([*words, f"s{config.seed}", run_hash(run_identity(config, spec))])


class RunFolder:
    """results/runs/<name>/ with config.json, metrics.jsonl, record.json and what else the run leaves."""

    def __init__(self, config: Config, spec: StreamSpec):
        self.name = run_name(config, spec)
        self.path = Path(config.results_path) / "runs" / self.name
        self.record_path = self.path / "record.json"
        self.log_path = self.path / "metrics.jsonl"
        self.model_path = self.path / "model.safetensors"

    @contextmanager
    def held(self) -> Iterator[None]:
        """For this process alone; raises HeldElsewhere if another has it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = OwnedLock(self.path)
        except OSError as error:
            raise UsageError(f"cannot write to {self.path}: {error.strerror}; set --results_path") from error
        except HeldElsewhere as error:
            raise HeldElsewhere(f"{self.name} is being run by {error}") from None
        try:
            yield
        finally:
            lock.release()

    def begin(self, config: Config) -> None:
        """Say what runs here; the record of an earlier attempt no longer holds."""
        write_json(self.path / "config.json", plain(config))
        self.record_path.unlink(missing_ok=True)

    def answer(self, config: Config) -> dict | None:
        """The record, if the run is finished and nothing more is asked for."""
        record = None if config.rerun else self.finished_record()
        if record is not None and config.save_model and not self.model_path.exists():
            raise UsageError("this run is finished, but its network was not kept: add --rerun to train and save it")
        return record

    def finished_record(self) -> dict | None:
        return self.read(self.path)

    @staticmethod
    def read(folder: Path) -> dict | None:
        """The record of a finished run; a failed one does not count."""
        path = folder / "record.json"
        try:
            record = json.loads(path.read_text())
            finished = record["status"] == "finished"
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"cannot read {path}: {error!r}; delete it, or --rerun") from error
        return record if finished else None


def make_record(folder: RunFolder, config: Config, spec: StreamSpec, status: str, outcome: dict[str, Any]) -> dict:
    """Everything worth keeping of a run, as plain data. `outcome` holds results and times, or the reason of failure."""
    record = {
        "run": folder.name,
        "status": status,
        "identity": run_identity(config, spec),
        "config": plain(config),
        "data": {"n_tasks": spec.n_tasks, "n_classes": spec.n_classes, "image_shape": spec.image_shape,
                 "train_sizes": spec.train_sizes, "test_sizes": spec.test_sizes, "mean": spec.mean, "std": spec.std,
                 "reported_on": "validation split" if getattr(config, "validation", None) else "test set"},
        **outcome,
        "environment": environment(config),
    }  # fmt: skip
    try:
        write_json(folder.record_path, record)
    except OSError as error:
        if status == "finished":
            raise RunFailed(f"cannot write {folder.record_path}: {error.strerror}") from error
        record["reason"] += f" (and no room for a record: {error.strerror})"
    return record


def plain(config: Config) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int | float | str | tuple | None) else str(value)
        for name, value in config.values().items()
    }


def environment(config: Config) -> dict[str, Any]:
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    return {
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "device_type": "cuda" if cuda else "cpu",
        "num_threads": torch.get_num_threads(),
        "peak_memory_mb": peak_memory_mb(),
        "peak_cuda_memory_mb": round(torch.cuda.max_memory_allocated() / 2**20, 1) if cuda else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: version(name) for name in ("torchvision", "numpy")},
        "commit": commit(),
    }


def peak_memory_mb() -> float:
    """Of this process; `getrusage` would count what its launcher had before the fork."""
    status = Path("/proc/self/status")
    if status.exists():
        kilobytes = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    else:
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(int(kilobytes) / 1024, 1)


def commit() -> str | None:
    """The code's commit, marked where files differ from it; None outside a repository."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(REPOSITORY), *words], capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
