"""`--launcher slurm` against a real Slurm of one node. `make test-slurm` runs this, as root."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tests.cluster.sweeps import local_results, long_runs, owner_of, under_way
from tests.scripts.sweeps import Lines, results_of, run_table8, wait_for
from utils.studies.launchers.slurm import SlurmEngine
from utils.studies.sweep import sweep

CONF = """ClusterName=t
SlurmctldHost=localhost
SlurmUser=root
AuthInfo=socket={base}/munge/s,cred_expire=10
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=5
SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=1
NodeName=localhost CPUs=2
PartitionName=p Nodes=localhost Default=YES
"""


@pytest.fixture(scope="module", autouse=True)
def cluster():
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)  # munged wants its socket in reach of all, which pytest's own folders are not
    for name in ("munge", "state", "spool"):
        (base / name).mkdir()
    (base / "key").write_bytes(os.urandom(128))
    (base / "key").chmod(0o600)
    (base / "slurm.conf").write_text(CONF.format(base=base))
    os.environ["SLURM_CONF"] = str(base / "slurm.conf")
    try:
        start_daemons(base)
        yield base
    finally:
        stop_daemons(base)
        del os.environ["SLURM_CONF"]
        shutil.rmtree(base, ignore_errors=True)


def start_daemons(base: Path) -> None:
    files = [f"--{name}-file={base}/munged.{name}" for name in ("pid", "log", "seed")]
    subprocess.run(["munged", f"--socket={base}/munge/s", f"--key-file={base}/key", *files], check=True)
    subprocess.run(["slurmctld"], check=True)
    subprocess.run(["slurmd"], check=True)
    wait_for(lambda: "idle" in subprocess.run(["sinfo", "-h"], capture_output=True, text=True, check=False).stdout, 60)


def stop_daemons(base: Path) -> None:
    subprocess.run(["scancel", "--user=root"], check=False)
    for name in ("slurmd", "slurmctld", "munged"):
        pid = base / f"{name}.pid"
        if pid.exists():
            os.kill(int(pid.read_text()), signal.SIGTERM)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return local_results(tmp_path_factory.mktemp("expected"), 3)


def slurm_sweep(runs, wanted, folder, *, sbatch_args="", disturb=lambda job: None):
    """(outcome, lines) of a sweep; `disturb` is called with the id of its job in another thread."""
    engine = SlurmEngine(folder / "slurm", len(wanted), 1, ["--cpus-per-task=1", *sbatch_args.split()])
    display = Lines()
    thread = threading.Thread(target=lambda: disturb(wait_for(lambda: engine.job)))
    thread.start()
    outcome = sweep(wanted, runs, engine, retries=0, display=display)
    thread.join()
    return outcome, display.lines


def restarts(job: str, index: int) -> int:
    shown = subprocess.run(["scontrol", "show", "job", f"{job}_{index}"], capture_output=True, text=True, check=False)
    return int(shown.stdout.split("Restarts=")[1].split()[0])


def test_array_job_runs_everything_and_a_requeued_task_resumes(expected, tmp_path):
    runs, wanted = long_runs(tmp_path, 3)

    def requeue(job):
        index = wait_for(lambda: [index for index, run in enumerate(wanted) if under_way(run)])[0]
        subprocess.run(["scontrol", "requeue", f"{job}_{index}"], check=True)

    outcome, _ = slurm_sweep(runs, wanted, tmp_path, disturb=requeue)
    assert (sorted(outcome.done), outcome.failed) == (sorted(expected), {})
    assert {run.name: results_of(run) for run in wanted} == expected
    assert {run.log.read_text().count("record: ") for run in wanted} == {1}
    [commands] = tmp_path.glob("slurm/*/commands.txt")
    assert len(commands.read_text().splitlines()) == 3


def test_time_limit_costs_nothing(tmp_path):
    """A run longer than its limit of a minute saves, queues itself again and resumes."""
    runs, [run] = long_runs(tmp_path, 1, n_epochs=4000, checkpoint_every="300s")

    def extend_second_attempt(job):
        wait_for(lambda: restarts(job, 0) >= 1 and any(run.folder.glob("checkpoint-*.pt")), 600)
        wait_for(lambda: owner_of(run) is not None, 120)
        subprocess.run(["scontrol", "update", f"jobid={job}_0", "timelimit=30"], check=True)

    outcome, _ = slurm_sweep(
        runs, [run], tmp_path, sbatch_args="--time=1 --signal=B:TERM@10", disturb=extend_second_attempt
    )
    assert (outcome.done, outcome.failed) == ([run.name], {})
    assert "stopped by SIGTERM" in run.log.read_text()
    assert run.log.read_text().count("record: ") == 1


def test_failed_run_is_tried_again_and_reported(tmp_path):
    runs, [run] = long_runs(tmp_path, 1, lr=1e30)
    outcome, lines = slurm_sweep(runs, [run], tmp_path)
    assert list(outcome.failed) == [run.name]
    assert outcome.exit_code == 1
    assert "diverged" in lines[-1]
    assert run.log.read_text().count("error: the loss became") == 2
    assert json.loads((run.folder / "record.json").read_text())["status"] == "failed"


def test_interrupted_sweep_cancels_its_job_after_checkpoints(tmp_path):
    process = run_table8(tmp_path, "--launcher", "slurm")
    wait_for(lambda: any(tmp_path.glob("runs/*/checkpoint-*.pt")))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130, err
    time.sleep(2)
    assert not subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout.strip()
    assert not any(path.read_text() for path in tmp_path.glob("runs/*/lock"))  # which name no owner
    unfinished = [path for path in tmp_path.glob("runs/*") if not (path / "record.json").exists()]
    assert any(list(path.glob("checkpoint-*.pt")) for path in unfinished)
    process = run_table8(tmp_path, "--launcher", "slurm", "--detach")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    wait_for(lambda: len(list(tmp_path.glob("runs/*/record.json"))) == 6, 300)


def test_bad_sbatch_argument_is_refused(tmp_path):
    process = run_table8(tmp_path, "--launcher", "slurm", "--sbatch_args=--partition=nowhere")
    _, err = process.communicate()
    assert process.returncode == 2
    assert err.splitlines()[-1].startswith("error: sbatch refused: ")
