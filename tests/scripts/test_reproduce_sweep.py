"""Sweeps: nothing repeated, nothing lost, whatever is killed; failures are tried again and reported."""

import csv
import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from io import StringIO
from pathlib import Path

import pytest

from scripts.reproduce import commands, request
from scripts.reproduce.__main__ import main as reproduce_main
from scripts.reproduce.launchers.local import LocalEngine, visible_gpus
from scripts.reproduce.plans import PLANS
from scripts.reproduce.presets import SMOKE
from scripts.reproduce.runs import DONE, FAILED, Run, Runs
from scripts.reproduce.selection import Selection, needed
from scripts.reproduce.sweep import Outcome, sweep
from scripts.reproduce.worker import Worker
from tests.scripts.records import finish
from tests.scripts.sweeps import Told, results_of, wait_for
from utils.errors import UsageError
from utils.files import OwnedLock

ROOT = Path(__file__).resolve().parents[2]
TINY = {"norm": "bn", "dataset": "seq-digits", "backbone": "mlp", "hidden": 8, "batch_size": 64, "num_threads": 1}


def tiny_runs(folder, **more) -> tuple[Runs, list[Run]]:
    runs = Runs(SMOKE, str(folder), measured=folder / "measured")
    options = TINY | {"results_path": str(folder)} | more
    return runs, [
        runs.run_with({"model": model, **options, "seed": seed}) for model in ("sgd", "er") for seed in (0, 1)
    ]


def test_all_runs_are_run_once(tmp_path):
    runs, wanted = tiny_runs(tmp_path)
    outcome = sweep(wanted, runs, LocalEngine(2, [], 1), retries=0, display=Told())
    assert sorted(outcome.done) == sorted(run.name for run in wanted)
    assert outcome.exit_code == 0
    records = {run.name: json.loads((run.folder / "record.json").read_text()) for run in wanted}
    assert {record["environment"]["num_threads"] for record in records.values()} == {1}
    times = [(run.folder / "record.json").stat().st_mtime_ns for run in wanted]
    told = Told()
    assert len(sweep(wanted, runs, LocalEngine(2, [], 1), retries=0, display=told).done) == 4
    assert told.lines == []
    assert [(run.folder / "record.json").stat().st_mtime_ns for run in wanted] == times


def test_failed_run_is_tried_again_and_reported_while_the_others_go_on(tmp_path):
    runs, wanted = tiny_runs(tmp_path)
    options = {"model": "sgd", **TINY, "lr": 1e30, "results_path": str(tmp_path)}
    diverging = runs.run_with(options)
    told = Told()
    outcome = sweep([diverging, *wanted], runs, LocalEngine(2, [], 1), retries=1, display=told)
    assert (len(outcome.done), outcome.exit_code) == (4, 1)
    assert outcome.failed == {diverging.name: "exit code 1"}
    assert f"{diverging.name}: exit code 1; attempt 2 of 2 goes on from its checkpoint" in told.lines
    [report] = [line for line in told.lines if line.startswith("failed")]
    assert "the run diverged; a smaller --lr may help" in report
    assert diverging.log.read_text().count("error: the loss became") == 2
    assert runs.state(diverging) == FAILED


def test_bad_usage_is_not_tried_again(tmp_path):
    runs, _ = tiny_runs(tmp_path)
    options = {"model": "sgd", "norm": "bn", "dataset": "seq-cifar10", "base_path": str(tmp_path / "nothing")}
    run = runs.run_with(options | {"results_path": str(tmp_path)})
    told = Told()
    outcome = sweep([run], runs, LocalEngine(1, [], 1), retries=3, display=told)
    assert outcome.failed == {run.name: "exit code 2"}
    assert len(told.lines) == 1
    assert runs.state(run) == FAILED


def test_run_that_another_process_has_is_waited_for(tmp_path):
    runs, [run, *_] = tiny_runs(tmp_path)
    run.folder.mkdir(parents=True)
    lock = OwnedLock(run.folder)
    waited = threading.Thread(target=lambda: (wait_for(lambda: run_was_refused(run)), lock.release()))
    waited.start()
    outcome = sweep([run], runs, LocalEngine(1, [], 1), retries=0, display=Told())
    waited.join()
    assert (outcome.done, outcome.failed) == ([run.name], {})


def run_was_refused(run: Run) -> bool:
    return run.log.exists() and "is being run by process" in run.log.read_text()


def test_killed_run_goes_on_from_its_checkpoint(tmp_path):
    long = {"n_epochs": 60, "checkpoint_every": "3"}
    runs, [whole, *_] = tiny_runs(tmp_path / "whole", **long)
    sweep([whole], runs, LocalEngine(1, [], 1), retries=0, display=Told())
    runs, [run, *_] = tiny_runs(tmp_path / "killed", **long)
    engine, told = LocalEngine(1, [], 1), Told()

    def kill_once():
        wait_for(lambda: any(run.folder.glob("checkpoint-*.pt")))
        os.kill(engine.worker.processes[run.name].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_once)
    killer.start()
    outcome = sweep([run], runs, engine, retries=1, display=told)
    killer.join()
    assert outcome.done == [run.name]
    assert f"{run.name}: exit code -9; attempt 2 of 2 goes on from its checkpoint" in told.lines
    assert results_of(run) == results_of(whole)


# --- the whole command ------------------------------------------------------------------------------------------------


def reproduce(*words: str, folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "scripts.reproduce", *words, "--results_path", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


SWEEP = ("run", "table8", "--preset", "smoke", "--workers", "2")


def finished(folder: Path) -> dict[str, int]:
    """When each record was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("runs/*/record.json")}


def nobody_runs(folder: Path) -> bool:
    return not any(OwnedLock.is_held(path) for path in folder.glob("runs/*"))


def report_of(folder: Path) -> str:
    process = reproduce("report", "table8", folder=folder)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert out.splitlines()[-1] == f"report: {folder}/reports/smoke/report.html"
    return (folder / "reports/smoke/report.csv").read_text()


def steps_run(folder: Path) -> dict[str, int]:
    """How often each run announced its end: once, or it was repeated."""
    return {path.parent.name: path.read_text().count("record: ") for path in folder.glob("runs/*/output.log")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    process = reproduce(*SWEEP, folder=folder)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert "6 runs, 0 of them finished, 6 to run" in err
    assert err.splitlines()[-1] == "6 runs done, 0 failed"
    return report_of(folder)


def test_report_has_no_made_up_cell(undisturbed):
    lines = list(csv.DictReader(StringIO(undisturbed)))
    assert [line["n"] for line in lines] == ["1"] * 12
    assert all(0 < float(line["ours"]) <= 100 for line in lines)


def test_sweep_that_is_killed_goes_on(undisturbed, tmp_path):
    process = reproduce(*SWEEP, folder=tmp_path)
    wait_for(lambda: len(finished(tmp_path)) >= 2)
    process.kill()
    process.communicate()
    wait_for(lambda: nobody_runs(tmp_path), 20)  # no child outlives its launcher
    before = finished(tmp_path)
    assert 2 <= len(before) < 6
    process = reproduce(*SWEEP, folder=tmp_path)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert f"6 runs, {len(before)} of them finished, {6 - len(before)} to run" in err
    after = finished(tmp_path)
    assert len(after) == 6
    assert before.items() <= after.items()
    assert set(steps_run(tmp_path).values()) == {1}
    assert report_of(tmp_path) == undisturbed


def under_way(folder: Path) -> list[Path]:
    """Unfinished runs that have trained a task."""
    logs = [path for path in folder.glob("runs/*/metrics.jsonl") if path.stat().st_size]
    return [path for path in logs if not path.with_name("record.json").exists()]


def test_interrupted_sweep_stops_its_runs_after_a_checkpoint(tmp_path):
    process = reproduce(*SWEEP, folder=tmp_path)
    wait_for(lambda: finished(tmp_path) and under_way(tmp_path))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert nobody_runs(tmp_path)
    assert "stopped; the same command goes on from the checkpoints" in err
    done = len(finished(tmp_path))
    stopped = {path.parent.name for path in tmp_path.glob("runs/*/checkpoint-*.pt")}
    assert done < 6
    assert 1 <= len(stopped) <= 2
    process = reproduce("status", "table8", folder=tmp_path)
    out, _ = process.communicate()
    assert (
        out.splitlines()[-1]
        == f"{done} done, 0 running, 0 failed, {len(stopped)} stopped, {6 - done - len(stopped)} missing"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "tabel2"], "unknown table, figure or study 'tabel2'; did you mean table2?"),
        (
            ["run", "all", "--seeds", "0,00"],
            "--seeds must be different whole numbers such as 0-4 or 0,1,2",
        ),
        (["run", "all", "--kappa", "5"], "argument --kappa: must be a number from 0 to 1, got '5'"),
        (["run", "all", "--detach"], "--detach is for --launcher slurm, not local"),
        (["run", "all", "--launcher", "slurm", "--sbatch_args", '"'], "--sbatch_args '\"': No closing quotation"),
        (["report", "--output", "/dev/null/x"], "argument --output: must be a folder, got '/dev/null/x'"),
        (
            ["run", "all", "--seeds", "0,x"],
            "--seeds must be different whole numbers such as 0-4 or 0,1,2",
        ),
        (["run", "all", "--preset", "cpu"], "--preset cpu needs --base_path, a folder of images"),
        (["run", "all", "--select", "test", "--kappa", "1"], "--kappa and --lambd are for --select fixed"),
        (["run", "all", "--workers", "0"], "argument --workers: must be a whole number from 1 to 10000, got '0'"),
        (["run", "all", "--also", "bmt"], "unknown norm 'bmt'"),
        (["run", "all", "--gpus", "7"], "--gpus 7: this machine has no GPU 7"),
        (["show"], "argument command: invalid choice: 'show'"),
        (["work", "nothing.json", "0"], "nothing.json is no manifest of this program, or damaged"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_gets_one_line(words, message, tmp_path):
    extra = [] if words[0] in ("show", "work") else ["--results_path", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.reproduce", *words, *extra],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"error: {message}")
    assert "Traceback" not in done.stderr


def test_only_what_shows_results_recalls_the_last_run(tmp_path):
    """And what it recalls must still exist."""
    last = {"preset": "smoke", "select": "fixed", "seeds": "5", "also": "gone,bnt"}
    (tmp_path / "reproduce.json").write_text(json.dumps(last))
    out, err = reproduce("list", "table8", folder=tmp_path).communicate()
    assert out.startswith("preset smoke")
    assert "seeds 5;" in out
    assert err == f"as in the last run ({tmp_path}/reproduce.json): --preset smoke --seeds 5 --also bnt\n"
    out, _ = reproduce("run", "table8", "--dry-run", folder=tmp_path).communicate()
    assert len(out.splitlines()) == 36


def test_status_lists_what_is_not_done_and_of_the_missing_not_too_many(tmp_path, capsys, monkeypatch):
    words = ["status", "table8", "--preset", "smoke", "--results_path", str(tmp_path)]
    assert reproduce_main(words) == 0
    *missing, last = capsys.readouterr().out.splitlines()
    runs, _ = needed([PLANS["table8"]], Selection("fixed", Runs(SMOKE, str(tmp_path)), (0,)))
    assert missing == [f"missing  {name}" for name in runs]
    assert last == "0 done, 0 running, 0 failed, 0 stopped, 6 missing"
    monkeypatch.setattr(commands, "SHOWN", 4)
    finish(next(iter(runs.values())), 50.0)
    assert reproduce_main(words) == 0
    *missing, last = capsys.readouterr().out.splitlines()
    assert missing[:4] == [f"missing  {name}" for name in list(runs)[1:5]]
    assert missing[4:] == ["missing  1 more; `run --dry_run` prints the commands of all"]


def test_dry_run_prints_the_commands(tmp_path):
    """Also for GPUs that are elsewhere."""
    process = reproduce("run", "table6", "--preset", "smoke", "--dry_run", "--gpus", "6,7", folder=tmp_path)
    out, err = process.communicate()
    runs, _ = needed([PLANS["table6"]], Selection("fixed", Runs(SMOKE, str(tmp_path)), (0,)))
    commands = [shlex.split(line) for line in out.splitlines()]
    assert sorted(commands) == sorted(["python", "main.py", *run.command()] for run in runs.values())
    assert "4 runs, 0 of them finished, 4 to run" in err
    assert list(tmp_path.iterdir()) == []


def test_unreadable_record_disturbs_nobody(tmp_path):
    """Neither the runs of others nor its own, which is run again."""
    runs, [run, other, *_] = tiny_runs(tmp_path)
    for folder, text in ((run.folder, '{"status": "fini'), (tmp_path / "runs" / "foreign", '{"status": "finished"}')):
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(text)
    assert runs.state(run) == FAILED
    assert list(runs.all_records()) == []
    outcome = sweep([run, other], runs, LocalEngine(2, [], 1), retries=0, display=Told())
    assert outcome.failed == {run.name: "exit code 2"}
    assert outcome.done == [other.name]
    assert "cannot be trusted: it is damaged, or of an older version of this project; --rerun" in run.log.read_text()


# --- a full disk ------------------------------------------------------------------------------------------------------


class Instant:
    """An engine whose runs are finished as they start, but for one, which nothing can be written for."""

    slots = 2

    def __init__(self, unlucky=None, error=None):
        self.unlucky, self.error, self.started, self.ended = unlucky, error, [], []

    def start(self, run):
        self.started.append(run.name)
        if run == self.unlucky and self.error:
            raise self.error
        if run != self.unlucky:
            finish(run, class_il=50.0)
        self.ended.append((run.name, int(run == self.unlucky)))

    def finished(self, timeout):
        ended, self.ended = self.ended, []
        return ended


NO_ROOM = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("error", "reason"),
    [(NO_ROOM, "[Errno 28] No space left on device"), (EOFError("unexpected EOF"), "unexpected EOF")],
)
def test_run_that_cannot_be_started_does_not_keep_the_others_from_it(tmp_path, error, reason):
    runs, [first, *others] = tiny_runs(tmp_path)
    engine, told = Instant(first, error), Told()
    outcome = sweep([first, *others], runs, engine, retries=1, display=told)
    assert outcome.failed == {first.name: f"cannot be started: {reason}"}
    assert sorted(outcome.done) == sorted(run.name for run in others)
    assert outcome.exit_code == 1
    assert engine.started.count(first.name) == 2
    assert any(line.startswith(f"failed {first.name} cannot be started: {reason}") for line in told.lines)


def test_failure_that_cannot_be_written_down_is_still_told(tmp_path):
    runs, [first, *others] = tiny_runs(tmp_path)
    engine, told = Instant(first), Told()
    start = engine.start
    engine.start = lambda run: start(run) or (run == first and first.failure.mkdir(parents=True))  # in the way
    outcome = sweep([first, *others], runs, engine, retries=0, display=told)
    assert (outcome.failed, len(outcome.done)) == ({first.name: "exit code 1"}, 3)
    assert any("`status` will not know that it failed: cannot write" in line for line in told.lines)


def test_place_of_a_run_that_cannot_be_started_is_free_again(tmp_path):
    _, [blocked, free, *_] = tiny_runs(tmp_path)
    blocked.folder.parent.mkdir(parents=True)
    blocked.folder.touch()
    engine = LocalEngine(1, [], 1)
    with pytest.raises(FileExistsError):
        engine.start(blocked)
    engine.start(free)
    assert wait_for(lambda: engine.finished(timeout=1.0)) == [(free.name, 0)]


def test_run_goes_on_when_its_log_finds_no_room(tmp_path):
    _, [run, *_] = tiny_runs(tmp_path)
    worker = Worker()
    worker.start(run.name, run.command(), Path("/dev/full"), {})
    assert wait_for(lambda: worker.finished(timeout=1.0)) == [(run.name, 0)]
    assert results_of(run)


@pytest.mark.parametrize(("number", "goes_on"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EROFS, False)])
def test_only_a_full_disk_lets_a_sweep_go_on_unremembered(tmp_path, monkeypatch, capsys, number, goes_on):
    def refusing(*_):
        raise OSError(number, os.strerror(number))

    launched = []
    monkeypatch.setattr(request, "write_json", refusing)
    monkeypatch.setattr(commands, "launch", lambda wanted, *_: launched.extend(wanted) or Outcome(failed={"a": "b"}))
    code = reproduce_main(["run", "table8", "--preset", "smoke", "--results_path", str(tmp_path)])
    assert (code, len(launched)) == ((1, 6) if goes_on else (2, 0))
    line = capsys.readouterr().err.splitlines()[3]  # after how many runs, how long, and how that is known
    assert line.startswith(
        f"warning: cannot write {tmp_path}/reproduce.json: " if goes_on else "error: cannot write to"
    )
    assert os.strerror(number) in line


def test_launcher_that_fails_leaves_nobody_behind(tmp_path):
    _, [run, *_] = tiny_runs(tmp_path, n_epochs=5000)
    engine = LocalEngine(1, [], 1)
    engine.start(run)
    log = run.folder / "metrics.jsonl"
    wait_for(lambda: log.exists() and log.stat().st_size)
    engine.close()
    assert engine.worker.processes == {}
    assert not OwnedLock.is_held(run.folder)
    assert any(run.folder.glob("checkpoint-*.pt"))


def test_masked_gpus_keep_their_own_numbers(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert visible_gpus(None) == ["5", "7"]
    assert visible_gpus("1") == ["7"]
    assert visible_gpus("none") == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpus(None) == ["0", "1"]


def test_gpus_are_shared_and_cores_by_the_threads_of_a_run():
    engine = LocalEngine(None, ["0", "3"], 2)
    assert (engine.slots, engine.free) == (4, ["0", "3", "0", "3"])
    cores = len(os.sched_getaffinity(0))
    assert (LocalEngine(None, [], 1).slots, LocalEngine(None, [], 1, 2).slots) == (cores, max(1, cores // 2))
    with pytest.raises(UsageError, match="--workers 8: the GPUs have room for 4"):
        LocalEngine(8, ["0", "3"], 2)


def test_done_is_the_only_state_that_counts(tmp_path):
    runs, [run, *_] = tiny_runs(tmp_path)
    assert runs.state(run) == "missing"
    run.folder.mkdir(parents=True)
    (run.folder / "checkpoint-000000003.pt").touch()
    assert runs.state(run) == "stopped"
    (run.folder / "record.json").write_text('{"status": "failed"}')
    assert runs.state(run) == FAILED
    finish(run, 50.0)
    assert runs.state(run) == DONE
