"""`--launcher ray`: Ray Core, on an existing cluster or a local one that is started for the sweep.

A task is one attempt of one run. Ray is asked for no retries: a worker or node that is lost comes back as a lost run,
and the sweep decides. Runs write into the results folder, which all nodes must share, as they must share the code.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from scripts.reproduce.launchers.local import cores
from scripts.reproduce.runs import Run
from utils.errors import UsageError

REPOSITORY = Path(__file__).resolve().parents[3]
OBJECT_STORE = 80 * 2**20  # bytes; nothing but names and exit codes passes through it
MAY_STOP = 120.0  # seconds that a run has for its last checkpoint

_worker = None  # of this Ray worker process: its server keeps torch imported from task to task


def attempt(name: str, command: list[str], log: str) -> int:
    """Runs in a Ray worker."""
    global _worker
    if _worker is None:
        from scripts.reproduce.worker import Worker

        _worker = Worker()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    _worker.start(name, command, Path(log), {"CUDA_VISIBLE_DEVICES": visible})
    try:
        while not (ended := _worker.finished(timeout=1.0)):
            pass
    except BaseException:  # cancelled: the run may still write its checkpoint
        _worker.terminate()
        ended = _worker.finished(timeout=MAY_STOP) or [(name, None)]
    return ended[0][1]


def _check_address(address: str | None) -> None:
    """Ray itself would try for minutes to reach a cluster that is not there."""
    host, _, port = (address or "").rpartition(":")
    if "://" in host or not port.isdigit():
        return  # no cluster was named, or not by its place
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
        environment = {"env_vars": {"PYTHONPATH": str(REPOSITORY)}}
        quiet = {"log_to_driver": False, "include_dashboard": False} if address is None else {"log_to_driver": False}
        if address is None:
            at_once = workers or max(1, cores() // num_threads)
            quiet |= {"num_cpus": at_once * num_threads, "object_store_memory": OBJECT_STORE}
        try:
            ray.init(address=address, runtime_env=environment, configure_logging=False, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"--ray_address {address}: {reason}; is the cluster up?") from None
        resources = ray.cluster_resources()
        on_gpu = resources.get("GPU", 0) > 0 and gpus
        places = int(resources["GPU"]) * jobs_per_gpu if on_gpu else int(resources.get("CPU", 1)) // num_threads
        largest = max(node["Resources"].get("CPU", 1) for node in ray.nodes() if node["Alive"])
        if not on_gpu and num_threads > largest:
            raise UsageError(f"--num_threads {num_threads}: the cluster's largest node has {largest:g} CPUs")
        self.slots = workers or max(1, places)
        share = {"num_gpus": 1 / jobs_per_gpu, "num_cpus": 0} if on_gpu else {"num_cpus": num_threads}
        self.attempt = ray.remote(attempt).options(max_retries=0, **share)
        self.references: dict = {}

    def start(self, run: Run) -> None:
        run = run.anywhere()
        reference = self.attempt.remote(run.name, run.launched(), str(run.log))
        self.references[reference] = run.name

    def finished(self, timeout: float) -> list[tuple[str, int | None]]:
        ready, _ = self.ray.wait(list(self.references), num_returns=1, timeout=timeout) if self.references else ([], [])
        return [(self.references.pop(reference), self._exit_code(reference)) for reference in ready]

    def _exit_code(self, reference) -> int | None:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError:  # the worker or its node died, or the task was cancelled
            return None

    def stop(self) -> None:
        for reference in self.references:
            self.ray.cancel(reference)

    def close(self) -> None:
        self.ray.shutdown()
