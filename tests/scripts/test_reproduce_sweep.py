"""Sweeps: nothing is repeated or lost, whatever is killed; failures are tried again and reported."""

import csv
import errno
import json
import os
import shlex
import signal
import subprocess
import threading
from contextlib import ExitStack
from io import StringIO
from itertools import product
from pathlib import Path

import pytest

from scripts.reproduce import main as reproduce
from tests.datasets.image_trees import pixels, save
from tests.scripts.records import finish, selection_of
from tests.scripts.sweeps import TINY, Lines, local_sweep, results_of, run_table8, tiny_runs, wait_for
from utils.errors import UsageError
from utils.files import folder_lock, is_locked
from utils.studies import subcommands
from utils.studies.launchers import slurm
from utils.studies.launchers.local import LocalEngine, visible_gpus
from utils.studies.launchers.slurm import SlurmEngine
from utils.studies.plans import PLANS
from utils.studies.presets import SMOKE
from utils.studies.runs import FAILED, Run, Runs, expected_seconds, total_time
from utils.studies.selection import required_runs
from utils.studies.sweep import DISAGREES, sweep


def test_all_runs_are_run_once(tmp_path):
    runs, wanted = tiny_runs(tmp_path)
    outcome = local_sweep(runs, wanted, workers=2)
    assert sorted(outcome.done) == sorted(run.name for run in wanted)
    assert outcome.exit_code == 0
    assert {runs.record(run)["environment"]["num_threads"] for run in wanted} == {1}
    times = [(run.folder / "record.json").stat().st_mtime_ns for run in wanted]
    display = Lines()
    assert len(local_sweep(runs, wanted, workers=2, display=display).done) == 4
    assert display.lines == []
    assert [(run.folder / "record.json").stat().st_mtime_ns for run in wanted] == times


def test_runs_of_a_sweep_may_decode_images_in_processes_of_their_own(tmp_path):
    runs, _ = tiny_runs(tmp_path)
    for domain, label, k in product(("art", "photo"), ("dog", "elk"), range(5)):
        save(tmp_path / "data" / domain / label / f"{k}.png", pixels((len(domain), len(label), k), 32))
    files = {"dataset": "dom-folder", "base_path": str(tmp_path / "data"), "image_size": 28, "num_workers": 2}
    flags = TINY | files | {"results_path": str(tmp_path), "batch_size": 4, "buffer_size": 10}
    run = runs.run_with({"model": "er", **flags})
    assert local_sweep(runs, [run]).done == [run.name], run.log.read_text()


def test_failed_run_is_tried_again_and_reported_and_bad_usage_is_not(tmp_path):
    runs, [good, *_] = tiny_runs(tmp_path)
    here = {"results_path": str(tmp_path)}
    diverging = runs.run_with({"model": "sgd", **TINY, "lr": 1e30, **here})
    no_data = runs.run_with({"model": "sgd", "dataset": "seq-cifar10", "base_path": str(tmp_path / "none"), **here})
    display = Lines()
    outcome = local_sweep(runs, [diverging, no_data, good], workers=2, retries=1, display=display)
    assert (outcome.done, outcome.exit_code) == ([good.name], 1)
    assert outcome.failed == {diverging.name: "exit code 1", no_data.name: "exit code 2"}
    assert [line.split(":")[0] for line in display.lines if "attempt 2 of 2" in line] == [diverging.name]
    [report] = [line for line in display.lines if line.startswith(f"FAILED {diverging.name}")]
    assert "diverged" in report
    assert diverging.log.read_text().count("diverged") == 2
    assert runs.state(diverging) == runs.state(no_data) == FAILED


def test_run_that_another_process_has_is_waited_for(tmp_path):
    runs, [run, *_] = tiny_runs(tmp_path)
    run.folder.mkdir(parents=True)
    display, lock = Lines(), ExitStack()
    lock.enter_context(folder_lock(run.folder))
    display.update = lambda *_: lock.close()
    outcome = local_sweep(runs, [run], display=display)
    assert (outcome.done, outcome.failed) == ([run.name], {})


def test_killed_run_resumes_its_checkpoint(tmp_path):
    long = {"n_epochs": 60, "checkpoint_every": "3"}
    runs, [whole, *_] = tiny_runs(tmp_path / "whole", **long)
    local_sweep(runs, [whole])
    runs, [run, *_] = tiny_runs(tmp_path / "killed", **long)
    engine, display = LocalEngine(1, [], 1), Lines()

    def kill_once():
        wait_for(lambda: any(run.folder.glob("checkpoint-*.pt")))
        os.kill(engine.running[run.name][0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_once)
    killer.start()
    outcome = sweep([run], runs, engine, retries=1, display=display)
    killer.join()
    assert outcome.done == [run.name]
    assert any("exit code -9; attempt 2 of 2" in line for line in display.lines)
    assert results_of(run) == results_of(whole)


def test_missing_outcome_is_added_and_the_old_results_are_checked(tmp_path):
    runs, [run, other, *_] = tiny_runs(tmp_path)
    assert local_sweep(runs, [run]).exit_code == 0
    before = results_of(run)
    finish(other, 1.0, 2.0)  # which no training gives
    runs, [full, wrong, *_] = tiny_runs(tmp_path, final_statistics=True)
    assert (full.name, wrong.name) == (run.name, other.name)
    assert not runs.is_done(full)
    outcome = local_sweep(runs, [full, wrong], retries=1)
    assert (outcome.done, outcome.failed) == ([run.name], {other.name: DISAGREES})
    after = results_of(run)
    assert "final_statistics" in after["class_il"]
    assert after["class_il"]["matrix"] == before["class_il"]["matrix"]
    old = json.loads((other.folder / "record.old.json").read_text())
    assert old["results"]["class_il"]["metrics"]["faa"] == 1.0


def test_unreadable_record_disturbs_no_other_run(tmp_path):
    runs, [run, other, *_] = tiny_runs(tmp_path)
    run.folder.mkdir(parents=True)
    (run.folder / "record.json").write_text('{"status": "fini')
    assert runs.state(run) == FAILED
    assert list(runs.all_records()) == []
    outcome = local_sweep(runs, [run, other], workers=2)
    assert (outcome.done, outcome.failed) == ([other.name], {run.name: "exit code 2"})
    assert "--rerun" in run.log.read_text()


# --- engines ----------------------------------------------------------------------------------------------------------


class Instant:
    """An engine whose runs are finished as they start, but for one, which cannot be started."""

    slots = 2

    def __init__(self, unlucky: Run, error: Exception):
        self.unlucky, self.error, self.started, self.ended = unlucky, error, [], []

    def start(self, run):
        self.started.append(run.name)
        if run == self.unlucky:
            raise self.error
        finish(run, class_il=50.0)
        self.ended.append((run.name, 0))

    def finished(self, timeout):
        ended, self.ended = self.ended, []
        return ended

    def close(self):
        pass


def test_run_that_cannot_be_started_does_not_stop_the_others(tmp_path):
    runs, [first, *others] = tiny_runs(tmp_path)
    engine = Instant(first, OSError(errno.ENOSPC, "No space left on device"))
    outcome = sweep([first, *others], runs, engine, retries=1, display=Lines())
    assert list(outcome.failed) == [first.name]
    assert "No space left" in outcome.failed[first.name]
    assert sorted(outcome.done) == sorted(run.name for run in others)
    assert engine.started.count(first.name) == 2


def test_masked_gpus_keep_their_own_numbers(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert visible_gpus(None) == ["5", "7"]
    assert visible_gpus("1") == ["7"]
    assert visible_gpus("none") == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpus(None) == ["0", "1"]


def test_gpus_are_shared_by_jobs_and_cores_by_threads():
    engine = LocalEngine(None, ["0", "3"], 2)
    assert (engine.slots, engine.free) == (4, ["0", "3", "0", "3"])
    assert LocalEngine(None, [], 1, 2).slots == max(1, len(os.sched_getaffinity(0)) // 2)
    with pytest.raises(UsageError, match="--jobs_per_gpu"):
        LocalEngine(8, ["0", "3"], 2)


def test_slurm_task_trains_again_only_until_it_has_begun(tmp_path, monkeypatch):
    """The script of the array job, without Slurm: a task that is queued again must resume."""
    _, [run, *_] = tiny_runs(tmp_path)
    engine = SlurmEngine(tmp_path / "slurm", 1, retries=0, options=[])
    monkeypatch.setattr(slurm, "_call", lambda *command: subprocess.CompletedProcess(command, 0, "7\n", ""))
    engine.start(run.as_rerun())
    engine.submit()
    assert engine.names == {"7_0": run.name}
    [command] = (engine.folder / "commands.txt").read_text().splitlines()
    words = run.as_rerun().with_absolute_paths().command()
    assert shlex.split(command)[1:] == ["main.py", *words, "--non_verbose"]
    (engine.folder / "commands.txt").write_text(f"echo {command}\n")
    (run.folder / "record.json").touch()
    for _ in range(2):
        environment = os.environ | {"SLURM_ARRAY_TASK_ID": "0"}
        subprocess.run(["bash", engine.folder / "job.sh"], env=environment, check=True)
        (run.folder / "record.json").unlink(missing_ok=True)
    first, second = run.log.read_text().splitlines()
    assert first.replace(" --rerun", "") == second
    assert first != second


def test_slurm_task_queues_itself_again_after_each_signal(tmp_path, monkeypatch):
    _, [run, *_] = tiny_runs(tmp_path)
    engine = SlurmEngine(tmp_path / "slurm", 1, retries=0, options=[])
    monkeypatch.setattr(slurm, "_call", lambda *command: subprocess.CompletedProcess(command, 0, "7\n", ""))
    engine.start(run)
    engine.submit()
    endless = "trap 'exit 143' TERM; echo ready; while :; do sleep 0.1; done"
    (engine.folder / "commands.txt").write_text(f"{shlex.join(['bash', '-c', endless])}\n")
    (tmp_path / "scontrol").write_text(f"#!/bin/bash\necho $@ >> {tmp_path}/queue\n")
    (tmp_path / "scontrol").chmod(0o755)
    ids = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_JOB_ID": "7", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for number in (signal.SIGTERM, signal.SIGUSR1):
        job = subprocess.Popen(["bash", engine.folder / "job.sh"], env=os.environ | ids)
        wait_for(lambda: run.log.exists() and "ready" in run.log.read_text())
        job.send_signal(number)
        assert job.wait() == 143
        run.log.unlink()
    assert (tmp_path / "queue").read_text() == "requeue 7_0\n" * 2


# --- forecasts --------------------------------------------------------------------------------------------------------


def test_expected_time_is_that_of_similar_recorded_runs(tmp_path):
    runs, [sgd, _, er, _] = tiny_runs(tmp_path)
    options = er.options | {"n_epochs": 3}
    longer, other_model = runs.run_with(options), runs.run_with(options | {"model": "derpp"})
    finish(sgd, 50.0, wall_seconds=2.0 * sgd.steps)
    finish(er, 50.0, wall_seconds=6.0 * er.steps)
    expected = expected_seconds([longer, other_model], runs.recorded_speeds())
    assert expected == {longer.name: 6.0 * longer.steps, other_model.name: None}
    assert [total_time(times) for times in ([60.0, 20.0], [60.0, None], [None])] == ["80 s", "60 s and more", "unknown"]


# --- data, which are looked at before anything starts ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "names"), [("table2", ["seq-cifar10", "seq-cifar100", "seq-miniimg"]), ("table2:cifar100", ["seq-cifar100"])]
)
def test_every_missing_data_set_is_one_line_and_a_dry_run_looks_at_none(
    tmp_path, monkeypatch, no_network, capsys, id, names
):
    monkeypatch.setattr(subcommands, "launch", lambda *_: pytest.fail("started"))
    words = ["--seeds", "0", "--base_path", str(tmp_path / "none"), "--results_path", str(tmp_path / "results")]
    assert reproduce(["run", id, *words]) == 2
    assert not (tmp_path / "results").exists()
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert [line.split(": ")[1] for line in lines] == names
    assert reproduce(["run", id, *words, "--dry-run"]) == 0
    assert "error" not in capsys.readouterr().err


def test_data_are_read_once(tmp_path, monkeypatch):
    runs, wanted = tiny_runs(tmp_path)
    builders = []
    monkeypatch.setattr(subcommands.StreamBuilder, "stream", lambda self, device: builders.append(self))
    assert subcommands.data_problems(wanted, runs) == []
    assert len(builders) == 1


# --- the whole command ------------------------------------------------------------------------------------------------

TABLE8 = ("table8", "--preset", "smoke")


def finished(folder: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("runs/*/record.json")}


def is_idle(folder: Path) -> bool:
    return not any(is_locked(path) for path in folder.glob("runs/*"))


def in_training(folder: Path) -> list[Path]:
    """Unfinished runs that have trained a task."""
    logs = [path for path in folder.glob("runs/*/metrics.jsonl") if path.stat().st_size]
    return [path for path in logs if not path.with_name("record.json").exists()]


def test_interrupted_and_killed_sweep_goes_on_and_repeats_nothing(tmp_path, capsys):
    process = run_table8(tmp_path)
    wait_for(lambda: in_training(tmp_path))
    process.send_signal(signal.SIGUSR1)
    _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGUSR1
    assert "Traceback" not in err
    assert is_idle(tmp_path)
    done, stopped = len(finished(tmp_path)), {path.parent for path in tmp_path.glob("runs/*/checkpoint-*.pt")}
    assert stopped
    assert reproduce(["status", *TABLE8, "--results_path", str(tmp_path)]) == 0
    counts = f"{done} done, 0 running, 0 failed, {len(stopped)} stopped, {6 - done - len(stopped)} missing"
    assert capsys.readouterr().out.splitlines()[-1] == counts

    process = run_table8(tmp_path)
    wait_for(lambda: len(finished(tmp_path)) > done)
    process.kill()
    process.communicate()
    wait_for(lambda: is_idle(tmp_path))  # no child outlives its launcher
    before = finished(tmp_path)

    process = run_table8(tmp_path)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert f"{len(before)} finished" in err
    after = finished(tmp_path)
    assert len(after) == 6
    assert before.items() <= after.items()
    # A run that is killed between its record and its last line has printed none; no run has printed two.
    assert max(path.read_text().count("record: ") for path in tmp_path.glob("runs/*/output.log")) == 1
    whole, _ = required_runs([PLANS["table8"]], selection_of(tmp_path / "whole"))
    local_sweep(Runs(SMOKE), list(whole.values()), workers=2)
    for name, run in whole.items():
        assert json.loads((tmp_path / "runs" / name / "record.json").read_text())["results"] == results_of(run)
    assert reproduce(["report", *TABLE8, "--results_path", str(tmp_path)]) == 0
    lines = list(csv.DictReader(StringIO((tmp_path / "reports/smoke/report.csv").read_text())))
    assert [line["n"] for line in lines] == ["1"] * 12
    assert all(0 < float(line["ours"]) <= 100 for line in lines)


def test_second_interrupt_ends_the_sweep_without_waiting(tmp_path):
    process = run_table8(tmp_path)
    wait_for(lambda: in_training(tmp_path))
    process.send_signal(signal.SIGINT)
    next(line for line in process.stderr if line.startswith("stopping"))
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    wait_for(lambda: is_idle(tmp_path))


def test_status_lists_what_is_not_done(tmp_path, capsys):
    runs, _ = required_runs([PLANS["table8"]], selection_of(tmp_path))
    finish(next(iter(runs.values())), 50.0)
    assert reproduce(["status", *TABLE8, "--results_path", str(tmp_path)]) == 0
    *missing, last = capsys.readouterr().out.splitlines()
    assert missing == [f"missing  {name}" for name in list(runs)[1:]]
    assert last == "1 done, 0 running, 0 failed, 0 stopped, 5 missing"


def test_status_explains_names_that_differ_only_in_the_hash(tmp_path, capsys):
    assert reproduce(["status", "core:cifar10", "--preset", "smoke", "--results_path", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("missing  derpp-bn-")]
    assert sorted(line.partition(" (")[2] for line in lines) == ["replay_forward joint)", "replay_forward separate)"]


def test_list_names_the_records_that_its_times_come_from(tmp_path, capsys):
    for preset, keyword in (("narrow", "kept in results/measured"), ("smoke", "no similar run")):
        assert reproduce(["list", "core", "--preset", preset, "--results_path", str(tmp_path)]) == 0
        assert keyword in capsys.readouterr().out.splitlines()[-1]


def test_dry_run_prints_the_commands_and_list_their_time(tmp_path, capsys):
    """Also for GPUs that are elsewhere."""
    here = ["table6", "--preset", "smoke", "--results_path", str(tmp_path)]
    assert reproduce(["run", *here, "--dry_run", "--gpus", "6,7"]) == 0
    printed = capsys.readouterr()
    runs, _ = required_runs([PLANS["table6"]], selection_of(tmp_path))
    expected = [["python", "main.py", *run.command()] for run in runs.values()]
    assert [shlex.split(line) for line in printed.out.splitlines()] == expected
    assert "4 runs, 0 finished, 4 to run" in printed.err
    assert list(tmp_path.iterdir()) == []
    time = total_time(expected_seconds(runs.values(), Runs(SMOKE, str(tmp_path)).recorded_speeds()).values())
    assert time in printed.err
    assert reproduce(["list", *here]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("table6", "all "))]
    assert [row.endswith(f"  {time}") for row in rows] == [True, True]
