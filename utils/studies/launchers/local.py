"""`--launcher local`: runs as processes of this machine. A Ray worker trains its run in the same way.

A server process has torch and the framework imported, and every run is a fork of it. A run whose launcher is gone stops
after a checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess

from utils import console
from utils.errors import UsageError
from utils.files import reject_links
from utils.studies.runs import Run

CHECKPOINT_SECONDS = 60.0  # that runs have for their last checkpoint


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
        self.free = devices[: self.slots]
        self.running: dict[str, tuple[ForkServerProcess, str]] = {}  # process and device
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["utils.studies.preloaded"])
        # Runs hold the reading end and see when this process is gone: the writing end exists only here.
        self._alive, self._held = self.context.Pipe(duplex=False)
        resource_tracker.ensure_running()  # before the signals are blocked, as it unblocks them
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, console.STOPS)  # a Ctrl-C would interrupt the server's imports
        forkserver.ensure_running()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def start(self, run: Run) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        reject_links(run.folder, *run.folder.glob("*"))
        arguments = (run.command(), str(run.log), self.free[0], self._alive)
        process = self.context.Process(target=_train, args=arguments)
        process.start()
        self.running[run.name] = process, self.free.pop(0)

    def finished(self, timeout: float) -> Sequence[tuple[str, int | None]]:
        wait([process.sentinel for process, _ in self.running.values()], timeout)
        codes = {name: process.exitcode for name, (process, _) in self.running.items()}
        ended = [(name, code) for name, code in codes.items() if code is not None]
        self.free += [self.running.pop(name)[1] for name, _ in ended]
        return ended

    def close(self) -> None:
        """Stop all runs after a checkpoint; kill those that take too long for it."""
        for process, _ in self.running.values():
            process.terminate()
        deadline = time.monotonic() + CHECKPOINT_SECONDS
        while self.running and time.monotonic() < deadline:
            self.finished(timeout=1.0)
        for process, _ in self.running.values():
            process.kill()


def _train(command: list[str], log: str, device: str, alive: Connection) -> None:
    os.setsid()  # the terminal sends a Ctrl-C to the launcher only
    signal.pthread_sigmask(signal.SIG_UNBLOCK, console.STOPS)
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ["CUDA_VISIBLE_DEVICES"] = device
    threading.Thread(target=_stop_with_launcher, args=(alive,), daemon=True).start()
    from main import main

    console.begin()
    code = console.end(main([*command, "--non_verbose"]))
    sys.stderr.flush()
    os._exit(code)  # without waiting for threads


def _stop_with_launcher(alive: Connection) -> None:
    try:
        alive.recv_bytes()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
