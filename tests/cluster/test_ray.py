"""`--launcher ray` on a real local cluster of two nodes. `make test-ray` runs this."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from scripts.reproduce.launchers.local import LocalEngine
from scripts.reproduce.launchers.ray import RayEngine
from scripts.reproduce.sweep import sweep
from tests.cluster.sweeps import long_runs, owner_of, under_way
from tests.scripts.sweeps import Told, results_of, wait_for
from utils.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
STORE = 80 * 2**20


@pytest.fixture
def cluster():
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": STORE})
    found.second = found.add_node(num_cpus=1, object_store_memory=STORE)
    yield found
    ray.shutdown()
    found.shutdown()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The results of the same runs, undisturbed on this machine."""
    runs, wanted = long_runs(tmp_path_factory.mktemp("expected"), 4)
    assert sweep(wanted, runs, LocalEngine(2, [], 1), retries=0, display=Told()).exit_code == 0
    return {run.name: results_of(run) for run in wanted}


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def ray_worker_of(run) -> int:
    """A run is a fork of a server that its Ray worker started."""
    return parent(parent(owner_of(run)))


def raylet_of(run) -> int:
    return parent(ray_worker_of(run))


def swept(runs, wanted, cluster, disturb=None, retries: int = 2):
    engine, told = RayEngine(cluster.address, None, gpus=True, jobs_per_gpu=1), Told()
    assert engine.slots == 2
    thread = threading.Thread(target=disturb or (lambda: None))
    thread.start()
    outcome = sweep(wanted, runs, engine, retries=retries, display=told)
    thread.join()
    return outcome, told


def assert_as_expected(wanted, expected) -> None:
    assert {run.name: results_of(run) for run in wanted} == expected
    assert {run.log.read_text().count("record: ") for run in wanted} == {1}  # none was run to its end twice
    conditions = [json.loads((run.folder / "record.json").read_text())["conditions"] for run in wanted]
    assert all([one["num_threads"] for one in found] == [1] for found in conditions)


def test_runs_use_both_nodes(cluster, expected, tmp_path):
    runs, wanted = long_runs(tmp_path, 4)
    raylets = set()

    def look():
        running = wait_for(lambda: [run for run in wanted if under_way(run)][1:] and wanted)
        raylets.update(raylet_of(run) for run in running if owner_of(run))

    outcome, _ = swept(runs, wanted, cluster, look)
    assert (len(outcome.done), outcome.failed) == (4, {})
    assert len(raylets) == 2
    assert_as_expected(wanted, expected)


def test_killed_ray_worker_costs_nothing(cluster, expected, tmp_path):
    runs, wanted = long_runs(tmp_path, 4)

    def kill():
        [victim, *_] = wait_for(lambda: [run for run in wanted if under_way(run)])
        os.kill(ray_worker_of(victim), signal.SIGKILL)

    outcome, told = swept(runs, wanted, cluster, kill)
    assert (len(outcome.done), outcome.failed) == (4, {})
    assert any("lost with its worker; attempt 2 of 3" in line for line in told.lines)
    assert_as_expected(wanted, expected)


def test_lost_node_costs_nothing(cluster, expected, tmp_path):
    runs, wanted = long_runs(tmp_path, 4)
    raylet = cluster.second.all_processes["raylet"][0].process.pid

    def lose():
        wait_for(lambda: any(under_way(run) and raylet_of(run) == raylet for run in wanted))
        cluster.remove_node(cluster.second, allow_graceful=False)

    outcome, told = swept(runs, wanted, cluster, lose)
    assert (len(outcome.done), outcome.failed) == (4, {})
    assert any("lost with its worker" in line for line in told.lines)
    assert_as_expected(wanted, expected)


def test_stopped_sweep_leaves_checkpoints_and_nobody_running(expected, tmp_path):
    """The whole command with a local cluster of its own."""
    command = [sys.executable, "-m", "scripts.reproduce", "run", "table8", "--preset", "smoke", "--launcher", "ray",
               "--workers", "2", "--results_path", str(tmp_path)]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any(tmp_path.glob("runs/*/checkpoint-*.pt")))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert not list(tmp_path.glob("runs/*/owner.json"))
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "0 failed" in err.splitlines()[-1]
    assert len(list(tmp_path.glob("runs/*/record.json"))) == 6


def test_more_threads_than_a_node_has_are_refused(cluster):
    with pytest.raises(UsageError, match="--num_threads 2: the cluster's largest node has 1 CPUs"):
        RayEngine(cluster.address, None, gpus=True, jobs_per_gpu=1, num_threads=2)


def test_cluster_that_is_not_there_is_refused(tmp_path):
    command = [sys.executable, "-m", "scripts.reproduce", "run", "table8", "--preset", "smoke", "--launcher", "ray",
               "--ray_address", "127.0.0.1:1", "--results_path", str(tmp_path)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: --ray_address 127.0.0.1:1")
