"""`--launcher local`: a pool of processes on this machine."""

from __future__ import annotations

import os

from scripts.reproduce.runs import Run
from scripts.reproduce.worker import Worker
from utils.errors import UsageError


def visible_gpus(asked: str | None) -> list[str]:
    """The GPUs to use: those asked for, or all there are."""
    import torch

    there = [str(index) for index in range(torch.cuda.device_count())]
    wanted = there if asked is None else [] if asked == "none" else asked.split(",")
    if unknown := [gpu for gpu in wanted if gpu not in there]:
        raise UsageError(f"--gpus {asked}: this machine has no GPU {', '.join(unknown)}; it has {len(there)}")
    # Where the user or a scheduler has masked some, numbers count within the mask, which a run's own mask replaces.
    mask = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    return [mask[int(gpu)] for gpu in wanted] if mask else wanted


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalEngine:
    """`workers` runs at a time; GPUs are shared by `jobs_per_gpu`."""

    def __init__(self, workers: int | None, gpus: list[str], jobs_per_gpu: int, num_threads: int = 1):
        self.places = [gpu for _ in range(jobs_per_gpu) for gpu in gpus] or [""] * (
            workers or max(1, cores() // num_threads)
        )
        if workers and workers > len(self.places):
            raise UsageError(f"--workers {workers}: the GPUs have room for {len(self.places)}; raise --jobs_per_gpu")
        self.slots = workers or len(self.places)
        self.worker = Worker()
        self.free = self.places[: self.slots]
        self.taken: dict[str, str] = {}

    def start(self, run: Run) -> None:
        self.worker.start(run.name, run.launched(), run.log, {"CUDA_VISIBLE_DEVICES": self.free[0]})
        self.taken[run.name] = self.free.pop(0)

    def finished(self, timeout: float) -> list[tuple[str, int | None]]:
        ended = self.worker.finished(timeout)
        for name, _ in ended:
            self.free.append(self.taken.pop(name))
        return ended

    def stop(self) -> None:
        self.worker.terminate()

    def close(self) -> None:
        self.worker.close()
