"""`--launcher ray`: Ray Core, on an existing cluster or a local one that is started for the sweep.

A task is one attempt of one run. Ray makes no retries: a lost worker or node is reported as a lost run, and the sweep
decides. All nodes must share the results folder and the code.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from utils.errors import UsageError
from utils.studies.launchers.local import CHECKPOINT_SECONDS, LocalEngine, cpu_slots
from utils.studies.runs import Run

REPOSITORY = Path(__file__).resolve().parents[3]
OBJECT_STORE = 80 * 2**20  # bytes; only runs and exit codes pass through it


def train_in_worker(run: Run) -> int | None:
    """Train a run in a Ray worker and return its exit code."""
    engine = LocalEngine(1, [os.environ.get("CUDA_VISIBLE_DEVICES", "")], 1)
    engine.start(run)
    try:
        while not (ended := engine.finished(timeout=1.0)):
            pass
        return ended[0][1]
    finally:
        engine.close()  # if the task was cancelled, the run may still write its checkpoint


class RayEngine:
    def __init__(self, address: str | None, workers: int | None, gpus: bool, jobs_per_gpu: int, num_threads: int = 1):
        try:
            import ray
        except ImportError:
            raise UsageError("--launcher ray needs Ray: pip install -r requirements-ray.txt") from None
        self.ray = ray
        settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        if address is None:
            cpus = (workers or cpu_slots(num_threads)) * num_threads
            settings |= {"include_dashboard": False, "num_cpus": cpus, "object_store_memory": OBJECT_STORE}
        try:
            host, _, port = (address or "").rpartition(":")
            if port.isdigit() and "://" not in host:  # Ray would try an address where nobody listens for minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address=address, runtime_env={"env_vars": {"PYTHONPATH": str(REPOSITORY)}}, **settings)
        except (OSError, ValueError, RuntimeError) as error:
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
        self.train = ray.remote(train_in_worker).options(max_retries=0, **share)
        self.names: dict[Any, str] = {}  # of the runs, by Ray's reference to the result

    def start(self, run: Run) -> None:
        self.names[self.train.remote(run.with_absolute_paths())] = run.name

    def finished(self, timeout: float) -> Sequence[tuple[str, int | None]]:
        ready, _ = self.ray.wait(list(self.names), num_returns=1, timeout=timeout) if self.names else ([], [])
        return [(self.names.pop(reference), self._exit_code(reference)) for reference in ready]

    def _exit_code(self, reference: Any) -> int | None:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError:  # the worker or its node died
            return None

    def close(self) -> None:
        for reference in self.names:
            self.ray.cancel(reference)
        if self.names:
            self.ray.wait(list(self.names), num_returns=len(self.names), timeout=2 * CHECKPOINT_SECONDS)
        self.ray.shutdown()
