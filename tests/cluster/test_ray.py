"""`--launcher ray` on a real local cluster of two nodes. `make test-ray` runs this."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from tests.cluster.sweeps import local_results, long_runs, owner_of, under_way
from tests.scripts.sweeps import Lines, results_of, run_table8, wait_for
from utils.errors import UsageError
from utils.studies.launchers.ray import RayEngine
from utils.studies.sweep import sweep

STORE = 80 * 2**20


@pytest.fixture
def cluster():
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": STORE})
    nodes.second = nodes.add_node(num_cpus=1, object_store_memory=STORE)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return local_results(tmp_path_factory.mktemp("expected"), 4)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def ray_worker_of(run) -> int:
    """A run is a fork of a server that its Ray worker started."""
    return parent(parent(owner_of(run)))


def raylet_of(run) -> int:
    return parent(ray_worker_of(run))


def run_sweep(folder: Path, cluster, expected, disturb) -> list[str]:
    """Sweep four runs while `disturb` acts on them, check their results, and return the lines of the display."""
    runs, wanted = long_runs(folder, 4)
    engine, display = RayEngine(cluster.address, None, gpus=True, jobs_per_gpu=1), Lines()
    assert engine.slots == 2
    thread = threading.Thread(target=disturb, args=(wanted, cluster))
    thread.start()
    outcome = sweep(wanted, runs, engine, retries=2, display=display)
    thread.join()
    assert (len(outcome.done), outcome.failed) == (4, {})
    assert {run.name: results_of(run) for run in wanted} == expected
    assert {run.log.read_text().count("record: ") for run in wanted} == {1}  # none was run to its end twice
    conditions = [json.loads((run.folder / "record.json").read_text())["conditions"] for run in wanted]
    assert all([each["num_threads"] for each in attempts] == [1] for attempts in conditions)
    return display.lines


def test_runs_use_both_nodes(cluster, expected, tmp_path):
    raylets = set()

    def look(wanted, cluster):
        running = wait_for(lambda: [run for run in wanted if under_way(run)][1:] and wanted)
        raylets.update(raylet_of(run) for run in running if owner_of(run))

    run_sweep(tmp_path, cluster, expected, look)
    assert len(raylets) == 2
    with pytest.raises(UsageError, match="--num_threads 2"):
        RayEngine(cluster.address, None, gpus=True, jobs_per_gpu=1, num_threads=2)


def kill_worker(wanted, cluster):
    [victim, *_] = wait_for(lambda: [run for run in wanted if under_way(run)])
    os.kill(ray_worker_of(victim), signal.SIGKILL)


def lose_node(wanted, cluster):
    raylet = cluster.second.all_processes["raylet"][0].process.pid
    wait_for(lambda: any(under_way(run) and raylet_of(run) == raylet for run in wanted))
    cluster.remove_node(cluster.second, allow_graceful=False)


@pytest.mark.parametrize("disturb", [kill_worker, lose_node])
def test_lost_worker_or_node_costs_nothing(disturb, cluster, expected, tmp_path):
    lines = run_sweep(tmp_path, cluster, expected, disturb)
    assert any("ended unfinished; attempt 2 of 3" in line for line in lines)


def test_stopped_sweep_leaves_checkpoints_and_no_process(tmp_path):
    """The whole command with a local cluster of its own."""
    process = run_table8(tmp_path, "--launcher", "ray")
    wait_for(lambda: any(tmp_path.glob("runs/*/checkpoint-*.pt")))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert not any(path.read_text() for path in tmp_path.glob("runs/*/lock"))  # which name no owner
    process = run_table8(tmp_path, "--launcher", "ray")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert len(list(tmp_path.glob("runs/*/record.json"))) == 6


def test_cluster_that_is_not_there_is_refused(tmp_path):
    process = run_table8(tmp_path, "--launcher", "ray", "--ray_address", "127.0.0.1:1")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2
    assert err.splitlines()[-1].startswith("error: --ray_address 127.0.0.1:1")
