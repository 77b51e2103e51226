"""`--launcher slurm` against a real Slurm of one node. `make test-slurm` runs this, as root."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from scripts.reproduce.launchers import slurm
from scripts.reproduce.launchers.local import LocalEngine
from scripts.reproduce.sweep import sweep
from tests.cluster.sweeps import long_runs, owner_of, under_way
from tests.scripts.sweeps import Told, results_of, wait_for

ROOT = Path(__file__).resolve().parents[2]
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
    """The results of the same runs, undisturbed without Slurm."""
    runs, wanted = long_runs(tmp_path_factory.mktemp("expected"), 3)
    assert sweep(wanted, runs, LocalEngine(2, [], 1), retries=0, display=Told()).exit_code == 0
    return {run.name: results_of(run) for run in wanted}


def submit(wanted, folder, sbatch_args: str = "") -> tuple[str, Path]:
    return slurm.submit(wanted, folder / "slurm", retries=1, at_once=None, gpus=False, num_threads=1,
                        sbatch_args=sbatch_args)  # fmt: skip


def restarts(job: str, index: int) -> int:
    shown = subprocess.run(["scontrol", "show", "job", f"{job}_{index}"], capture_output=True, text=True, check=False)
    return int(shown.stdout.split("Restarts=")[1].split()[0])


def test_array_job_runs_everything(expected, tmp_path):
    runs, wanted = long_runs(tmp_path, 3)
    job, manifest = submit(wanted, tmp_path)
    outcome = slurm.follow(job, manifest, wanted, runs, Told())
    assert (sorted(outcome.done), outcome.failed) == (sorted(expected), {})
    assert {run.name: results_of(run) for run in wanted} == expected


def test_requeued_task_goes_on_from_its_checkpoint(expected, tmp_path):
    runs, wanted = long_runs(tmp_path, 3)
    job, manifest = submit(wanted, tmp_path)
    index, victim = wait_for(lambda: [(n, run) for n, run in enumerate(wanted) if under_way(run)])[0]
    subprocess.run(["scontrol", "requeue", f"{job}_{index}"], check=True)
    outcome = slurm.follow(job, manifest, wanted, runs, Told())
    assert (len(outcome.done), outcome.failed) == (3, {})
    assert {run.name: results_of(run) for run in wanted} == expected
    assert victim.log.read_text().count("record: ") == 1


def test_time_limit_costs_nothing(tmp_path):
    """Longer than its limit of a minute: it is told in time, saves, queues itself again and goes on."""
    runs, [run] = long_runs(tmp_path, 1, n_epochs=4000, checkpoint_every="300s")
    job, manifest = submit([run], tmp_path, "--time=1 --signal=B:TERM@10")
    wait_for(lambda: restarts(job, 0) >= 1, 240)
    [checkpoint, *_] = sorted(run.folder.glob("checkpoint-*.pt"))
    assert "stopped by SIGTERM" in run.log.read_text()
    step = int(checkpoint.stem.split("-")[1])
    assert step > 0
    wait_for(lambda: owner_of(run) is not None, 120)
    subprocess.run(["scontrol", "update", f"jobid={job}_0", "timelimit=30"], check=True)
    outcome = slurm.follow(job, manifest, [run], runs, Told())
    assert (outcome.done, outcome.failed) == ([run.name], {})
    assert run.log.read_text().count("record: ") == 1


def test_interrupted_sweep_cancels_its_job_after_checkpoints(tmp_path):
    command = [sys.executable, "-m", "scripts.reproduce", "run", "table8", "--preset", "smoke", "--launcher", "slurm",
               "--results_path", str(tmp_path)]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any(tmp_path.glob("runs/*/checkpoint-*.pt")))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130, err
    time.sleep(2)
    assert not subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout.strip()
    assert not list(tmp_path.glob("runs/*/owner.json"))
    unfinished = [path for path in tmp_path.glob("runs/*") if not (path / "record.json").exists()]
    assert any(list(path.glob("checkpoint-*.pt")) for path in unfinished)
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert len(list(tmp_path.glob("runs/*/record.json"))) == 6


def test_failed_run_is_reported(tmp_path):
    runs, [run] = long_runs(tmp_path, 1, lr=1e30)
    job, manifest = submit([run], tmp_path)
    told = Told()
    outcome = slurm.follow(job, manifest, [run], runs, told)
    assert outcome.failed == {run.name: "left the queue unfinished"}
    assert outcome.exit_code == 1
    assert "the run diverged" in told.lines[-1]
    assert json.loads((run.folder / "record.json").read_text())["status"] == "failed"


def test_bad_sbatch_argument_is_refused(tmp_path):
    command = [sys.executable, "-m", "scripts.reproduce", "run", "table8", "--preset", "smoke", "--launcher", "slurm",
               "--sbatch_args=--partition=nowhere", "--results_path", str(tmp_path)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: sbatch refused: ")
