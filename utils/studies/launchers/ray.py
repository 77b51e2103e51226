"""`--launcher ray`: Ray Core, on an existing cluster or a local one that is started for the sweep.

A task is one attempt of one run. Ray makes no retries: a lost worker or node is reported as a lost run, and the sweep
decides. All nodes must share the results folder and the code.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utils.errors import UsageError
from utils.studies.launchers.local import cpu_slots
from utils.studies.runs import Run

if TYPE_CHECKING:
    from utils.studies.worker import Worker

REPOSITORY = Path(__file__).resolve().parents[3]
OBJECT_STORE = 80 * 2**20  # bytes; only names and exit codes pass through it
CHECKPOINT_SECONDS = 120.0  # that runs have for their last checkpoint

_worker: Worker | None = None  # of this Ray worker process: its server keeps torch imported from task to task


def attempt(name: str, command: list[str], log: str) -> int | None:
    """Train a run in a Ray worker and return its exit code."""
    global _worker
    if _worker is None:
        from utils.studies.worker import Worker

        _worker = Worker()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    _worker.start(name, command, Path(log), {"CUDA_VISIBLE_DEVICES": visible})
    try:
        while not (ended := _worker.finished(timeout=1.0)):
            pass
    except BaseException:  # cancelled: the run may still write its checkpoint
        _worker.terminate()
        ended = _worker.finished(timeout=CHECKPOINT_SECONDS)
    return ended[0][1] if ended else None


def _check_address(address: str | None) -> None:
    """Refuse an address that nobody listens at; Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if "://" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise UsageError(f"--ray_address {address}: {error.strerror or error}; is the cluster up?") from None


class RayEngine:
    def __init__(self, address: str | None, workers: int | None, gpus: bool, jobs_per_gpu: int, num_threads: int = 1):
        try:
            import ray
        except ImportError:
            raise UsageError("--launcher ray needs Ray: pip install -r requirements-ray.txt") from None
        self.ray = ray
        _check_address(address)
        settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        if address is None:
            cpus = (workers or cpu_slots(num_threads)) * num_threads
            settings |= {"include_dashboard": False, "num_cpus": cpus, "object_store_memory": OBJECT_STORE}
        try:
            ray.init(address=address, runtime_env={"env_vars": {"PYTHONPATH": str(REPOSITORY)}}, **settings)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"--ray_address {address}: {reason}; is the cluster up?") from None
        resources = ray.cluster_resources()
        on_gpu = resources.get("GPU", 0) > 0 and gpus
        slots = int(resources["GPU"]) * jobs_per_gpu if on_gpu else int(resources.get("CPU", 1)) // num_threads
        largest = max(node["Resources"].get("CPU", 1) for node in ray.nodes() if node["Alive"])
        if not on_gpu and num_threads > largest:
            raise UsageError(f"--num_threads {num_threads}: the cluster's largest node has {largest:g} CPUs")
        self.slots = workers or max(1, slots)
        share = {"num_gpus": 1 / jobs_per_gpu, "num_cpus": 0} if on_gpu else {"num_cpus": num_threads}
        self.attempt = ray.remote(attempt).options(max_retries=0, **share)
        self.references: dict[Any, str] = {}  # names by Ray's reference to the result

    def start(self, run: Run) -> None:
        run = run.with_absolute_paths()
        reference = self.attempt.remote(run.name, run.sweep_command(), str(run.log))
        self.references[reference] = run.name

    def finished(self, timeout: float) -> Sequence[tuple[str, int | None]]:
        ready, _ = self.ray.wait(list(self.references), num_returns=1, timeout=timeout) if self.references else ([], [])
        return [(self.references.pop(reference), self._exit_code(reference)) for reference in ready]

    def _exit_code(self, reference: Any) -> int | None:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError:  # the worker or its node died
            return None

    def close(self) -> None:
        references = list(self.references)
        for reference in references:
            self.ray.cancel(reference)
        if references:
            self.ray.wait(references, num_returns=len(references), timeout=CHECKPOINT_SECONDS)
        self.ray.shutdown()
