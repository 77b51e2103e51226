"""`--launcher local`: a pool of processes on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

from utils.errors import UsageError
from utils.studies.runs import Run
from utils.studies.worker import Worker


def visible_gpus(gpus: str | None) -> list[str]:
    """Return the GPUs that `--gpus` names, by default all there are, as CUDA_VISIBLE_DEVICES takes them."""
    import torch

    available = [str(index) for index in range(torch.cuda.device_count())]
    wanted = available if gpus is None else [] if gpus == "none" else gpus.split(",")
    if unknown := [gpu for gpu in wanted if gpu not in available]:
        raise UsageError(f"--gpus {gpus}: this machine has no GPU {', '.join(unknown)}; it has {len(available)}")
    # Where the user or a scheduler has masked some, numbers count within the mask, which a run's own mask replaces.
    mask = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    return [mask[int(gpu)] for gpu in wanted] if mask else wanted


def cpu_slots(num_threads: int) -> int:
    """Return how many runs of this many threads the cores of this machine allow."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // num_threads)


class LocalEngine:
    """Trains `workers` runs at a time; each GPU is shared by `jobs_per_gpu`."""

    def __init__(self, workers: int | None, gpus: list[str], jobs_per_gpu: int, num_threads: int = 1):
        devices = gpus * jobs_per_gpu or [""] * (workers or cpu_slots(num_threads))
        if workers and workers > len(devices):
            raise UsageError(f"--workers {workers}: the GPUs have room for {len(devices)}; raise --jobs_per_gpu")
        self.slots = workers or len(devices)
        self.worker = Worker()
        self.free = devices[: self.slots]
        self.taken: dict[str, str] = {}

    def start(self, run: Run) -> None:
        self.worker.start(run.name, run.sweep_command(), run.log, {"CUDA_VISIBLE_DEVICES": self.free[0]})
        self.taken[run.name] = self.free.pop(0)

    def finished(self, timeout: float) -> Sequence[tuple[str, int | None]]:
        ended = self.worker.finished(timeout)
        self.free += [self.taken.pop(name) for name, _ in ended]
        return ended

    def close(self) -> None:
        self.worker.close()
