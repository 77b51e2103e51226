"""Sweeps: nothing is repeated or lost, whatever is killed; failures are tried again and reported."""

import csv
import errno
import json
import os
import shlex
import signal
import threading
from contextlib import ExitStack
from io import StringIO
from pathlib import Path

import pytest

from scripts.reproduce import main as reproduce
from tests.scripts.records import finish
from tests.scripts.sweeps import TINY, Lines, results_of, run_table8, tiny_runs, wait_for
from utils.errors import UsageError
from utils.files import folder_lock, is_locked
from utils.studies import subcommands
from utils.studies.launchers.local import LocalEngine, visible_gpus
from utils.studies.plans import PLANS
from utils.studies.presets import SMOKE
from utils.studies.runs import DONE, FAILED, Run, Runs, expected_seconds, total_time
from utils.studies.selection import Selection, required_runs
from utils.studies.sweep import DISAGREES, sweep


def test_all_runs_are_run_once(tmp_path):
    runs, wanted = tiny_runs(tmp_path)
    outcome = sweep(wanted, runs, LocalEngine(2, [], 1), retries=0, display=Lines())
    assert sorted(outcome.done) == sorted(run.name for run in wanted)
    assert outcome.exit_code == 0
    assert {runs.record(run)["environment"]["num_threads"] for run in wanted} == {1}
    times = [(run.folder / "record.json").stat().st_mtime_ns for run in wanted]
    display = Lines()
    assert len(sweep(wanted, runs, LocalEngine(2, [], 1), retries=0, display=display).done) == 4
    assert display.lines == []
    assert [(run.folder / "record.json").stat().st_mtime_ns for run in wanted] == times


def test_failed_run_is_tried_again_and_reported_and_bad_usage_is_not(tmp_path):
    runs, [good, *_] = tiny_runs(tmp_path)
    here = {"results_path": str(tmp_path)}
    diverging = runs.run_with({"model": "sgd", **TINY, "lr": 1e30, **here})
    no_data = runs.run_with({"model": "sgd", "dataset": "seq-cifar10", "base_path": str(tmp_path / "none"), **here})
    display = Lines()
    outcome = sweep([diverging, no_data, good], runs, LocalEngine(2, [], 1), retries=1, display=display)
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
    outcome = sweep([run], runs, LocalEngine(1, [], 1), retries=0, display=display)
    assert (outcome.done, outcome.failed) == ([run.name], {})


def test_killed_run_resumes_its_checkpoint(tmp_path):
    long = {"n_epochs": 60, "checkpoint_every": "3"}
    runs, [whole, *_] = tiny_runs(tmp_path / "whole", **long)
    sweep([whole], runs, LocalEngine(1, [], 1), retries=0, display=Lines())
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
    assert sweep([run], runs, LocalEngine(1, [], 1), retries=0, display=Lines()).exit_code == 0
    before = results_of(run)
    finish(other, 1.0, 2.0)  # which no training gives
    runs, [full, wrong, *_] = tiny_runs(tmp_path, final_statistics=True)
    assert (full.name, wrong.name) == (run.name, other.name)
    assert not runs.is_done(full)
    outcome = sweep([full, wrong], runs, LocalEngine(1, [], 1), retries=1, display=Lines())
    assert (outcome.done, outcome.failed) == ([run.name], {other.name: DISAGREES})
    after = results_of(run)
    assert "final_statistics" in after["class_il"]
    assert after["class_il"]["matrix"] == before["class_il"]["matrix"]
    old = json.loads((other.folder / "record.old.json").read_text())
    assert old["results"]["class_il"]["metrics"]["faa"] == 1.0


def test_unreadable_record_disturbs_no_other_run(tmp_path):
    runs, [run, other, *_] = tiny_runs(tmp_path)
    for folder, text in ((run.folder, '{"status": "fini'), (tmp_path / "runs" / "foreign", '{"status": "finished"}')):
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(text)
    assert runs.state(run) == FAILED
    assert list(runs.all_records()) == []
    outcome = sweep([run, other], runs, LocalEngine(2, [], 1), retries=0, display=Lines())
    assert outcome.failed == {run.name: "exit code 2"}
    assert outcome.done == [other.name]
    assert "--rerun" in run.log.read_text()


# --- engines ----------------------------------------------------------------------------------------------------------


class Instant:
    """An engine whose runs are finished as they start, but for one, which cannot be started."""

    slots = 2

    def __init__(self, unlucky: Run, error: Exception):
        self.unlucky, self.error, self.started, self.ended, self.closed = unlucky, error, [], [], False

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
        self.closed = True


def test_run_that_cannot_be_started_does_not_stop_the_others(tmp_path):
    runs, [first, *others] = tiny_runs(tmp_path)
    engine = Instant(first, OSError(errno.ENOSPC, "No space left on device"))
    outcome = sweep([first, *others], runs, engine, retries=1, display=Lines())
    assert list(outcome.failed) == [first.name]
    assert "No space left" in outcome.failed[first.name]
    assert sorted(outcome.done) == sorted(run.name for run in others)
    assert engine.started.count(first.name) == 2


def test_engine_is_closed_when_the_sweep_fails(tmp_path):
    runs, [first, *_] = tiny_runs(tmp_path)
    engine = Instant(first, ValueError("a defect"))
    with pytest.raises(ValueError, match="a defect"):
        sweep([first], runs, engine, retries=0, display=Lines())
    assert engine.closed


def test_slot_of_a_run_that_cannot_be_started_is_free_again(tmp_path):
    _, [blocked, free, *_] = tiny_runs(tmp_path)
    blocked.folder.parent.mkdir(parents=True)
    blocked.folder.touch()
    engine = LocalEngine(1, [], 1)
    with pytest.raises(FileExistsError):
        engine.start(blocked)
    engine.start(free)
    assert wait_for(lambda: engine.finished(timeout=1.0)) == [(free.name, 0)]


def test_closed_engine_leaves_checkpoints_and_no_process(tmp_path):
    _, [run, *_] = tiny_runs(tmp_path, n_epochs=5000)
    engine = LocalEngine(1, [], 1)
    engine.start(run)
    log = run.folder / "metrics.jsonl"
    wait_for(lambda: log.exists() and log.stat().st_size)
    engine.close()
    assert engine.running == {}
    assert not is_locked(run.folder)
    assert any(run.folder.glob("checkpoint-*.pt"))


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
    cores = len(os.sched_getaffinity(0))
    assert (LocalEngine(None, [], 1).slots, LocalEngine(None, [], 1, 2).slots) == (cores, max(1, cores // 2))
    with pytest.raises(UsageError, match="--jobs_per_gpu"):
        LocalEngine(8, ["0", "3"], 2)


# --- states and forecasts ---------------------------------------------------------------------------------------------


def test_states_of_a_run(tmp_path):
    runs, [run, *_] = tiny_runs(tmp_path)
    assert runs.state(run) == "missing"
    run.folder.mkdir(parents=True)
    (run.folder / "checkpoint-000000003.pt").touch()
    assert runs.state(run) == "stopped"
    (run.folder / "record.json").write_text('{"status": "failed"}')
    assert runs.state(run) == FAILED
    finish(run, 50.0)
    assert runs.state(run) == DONE


def test_expected_time_is_that_of_similar_recorded_runs(tmp_path):
    runs, [sgd, _, er, _] = tiny_runs(tmp_path)
    options = er.options | {"n_epochs": 3}
    longer, other_model = runs.run_with(options), runs.run_with(options | {"model": "derpp"})
    finish(sgd, 50.0, wall_seconds=2.0 * sgd.steps)
    finish(er, 50.0, wall_seconds=6.0 * er.steps)
    expected = expected_seconds([longer, other_model], runs)
    assert expected == {longer.name: 6.0 * longer.steps, other_model.name: None}
    assert total_time([60.0, 20.0]) == "80 s"
    assert total_time([60.0, None]) == "60 s and more"
    assert total_time([None]) == "unknown"


# --- the whole command ------------------------------------------------------------------------------------------------

TABLE8 = ("table8", "--preset", "smoke")


def finished(folder: Path) -> dict[str, int]:
    """When each record was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("runs/*/record.json")}


def is_idle(folder: Path) -> bool:
    return not any(is_locked(path) for path in folder.glob("runs/*"))


def report_of(folder: Path, capsys) -> str:
    assert reproduce(["report", *TABLE8, "--results_path", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {folder}/reports/smoke/report.html"
    return (folder / "reports/smoke/report.csv").read_text()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    process = run_table8(folder)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert len(finished(folder)) == 6
    return folder


def test_report_has_all_cells(undisturbed, capsys):
    lines = list(csv.DictReader(StringIO(report_of(undisturbed, capsys))))
    assert [line["n"] for line in lines] == ["1"] * 12
    assert all(0 < float(line["ours"]) <= 100 for line in lines)


def test_sweep_that_is_killed_goes_on(undisturbed, tmp_path, capsys):
    process = run_table8(tmp_path)
    wait_for(lambda: len(finished(tmp_path)) >= 2)
    process.kill()
    process.communicate()
    wait_for(lambda: is_idle(tmp_path), 20)  # no child outlives its launcher
    before = finished(tmp_path)
    assert 2 <= len(before) < 6
    process = run_table8(tmp_path)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert f"{len(before)} of them finished" in err
    after = finished(tmp_path)
    assert len(after) == 6
    assert before.items() <= after.items()
    assert {path.read_text().count("record: ") for path in tmp_path.glob("runs/*/output.log")} == {1}
    assert report_of(tmp_path, capsys) == report_of(undisturbed, capsys)


def in_training(folder: Path) -> list[Path]:
    """Unfinished runs that have trained a task."""
    logs = [path for path in folder.glob("runs/*/metrics.jsonl") if path.stat().st_size]
    return [path for path in logs if not path.with_name("record.json").exists()]


def test_interrupted_sweep_stops_its_runs_after_a_checkpoint(tmp_path, capsys):
    process = run_table8(tmp_path)
    wait_for(lambda: finished(tmp_path) and in_training(tmp_path))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert is_idle(tmp_path)
    done = len(finished(tmp_path))
    stopped = {path.parent.name for path in tmp_path.glob("runs/*/checkpoint-*.pt")}
    assert done < 6
    assert 1 <= len(stopped) <= 2
    assert reproduce(["status", *TABLE8, "--results_path", str(tmp_path)]) == 0
    counts = f"{done} done, 0 running, 0 failed, {len(stopped)} stopped, {6 - done - len(stopped)} missing"
    assert capsys.readouterr().out.splitlines()[-1] == counts


def test_second_interrupt_ends_the_sweep_without_waiting(tmp_path):
    process = run_table8(tmp_path)
    wait_for(lambda: in_training(tmp_path))
    process.send_signal(signal.SIGINT)
    wait_for(lambda: process.stderr.readline().startswith("stopping"))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    wait_for(lambda: is_idle(tmp_path))


@pytest.mark.parametrize(
    ("words", "keyword"),
    [
        (["run", "tabel2"], "did you mean table2"),
        (["run", "all", "--seeds", "0,00"], "--seeds"),
        (["run", "all", "--seeds", "0,x"], "--seeds"),
        (["run", "confirm", "--preset", "narrow", "--seeds", "0"], "docs/protocol.md"),
        (["run", "all", "--detach"], "--launcher slurm"),
        (["run", "all", "--launcher", "slurm", "--sbatch_args", '"'], "--sbatch_args"),
        (["run", "all", "--launcher", "slurm", "--jobs_per_gpu", "2"], "--jobs_per_gpu"),
        (["run", "all", "--launcher", "ray", "--gpus", "2"], "--gpus"),
        (["report", "fig1", "--output", "/dev/null/x"], "/dev/null/x"),
        (["run", "all", "--preset", "cpu"], "--base_path"),
        (["run", "all", "--workers", "0"], "--workers"),
        (["run", "all", "--also", "bmt"], "unknown norm 'bmt'"),
        (["run", "all", "--gpus", "7"], "no GPU 7"),
        (["show"], "'show'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_gets_one_line(words, keyword, tmp_path, capsys):
    folder = [] if words == ["show"] else ["--results_path", str(tmp_path)]
    try:
        code = reproduce([*words, *folder])
    except SystemExit as error:
        code = error.code
    assert code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert keyword in line


def test_status_lists_what_is_not_done_and_only_some_of_the_missing(tmp_path, capsys, monkeypatch):
    words = ["status", *TABLE8, "--results_path", str(tmp_path)]
    assert reproduce(words) == 0
    *missing, last = capsys.readouterr().out.splitlines()
    runs, _ = required_runs([PLANS["table8"]], Selection("fixed", Runs(SMOKE, str(tmp_path)), (0,)))
    assert missing == [f"missing  {name}" for name in runs]
    assert last == "0 done, 0 running, 0 failed, 0 stopped, 6 missing"
    monkeypatch.setattr(subcommands, "MAX_MISSING", 4)
    finish(next(iter(runs.values())), 50.0)
    assert reproduce(words) == 0
    *missing, more, last = capsys.readouterr().out.splitlines()
    assert missing == [f"missing  {name}" for name in list(runs)[1:5]]
    assert more.startswith("missing  1 more")


def test_dry_run_prints_the_commands_and_list_their_time(tmp_path, capsys):
    """Also for GPUs that are elsewhere."""
    here = ["table6", "--preset", "smoke", "--results_path", str(tmp_path)]
    assert reproduce(["run", *here, "--dry_run", "--gpus", "6,7"]) == 0
    printed = capsys.readouterr()
    runs, _ = required_runs([PLANS["table6"]], Selection("fixed", Runs(SMOKE, str(tmp_path)), (0,)))
    expected = [["python", "main.py", *run.command()] for run in runs.values()]
    assert [shlex.split(line) for line in printed.out.splitlines()] == expected
    assert "4 runs, 0 of them finished, 4 to run" in printed.err
    assert list(tmp_path.iterdir()) == []
    time = total_time(expected_seconds(runs.values(), Runs(SMOKE, str(tmp_path))).values())
    assert time in printed.err
    assert reproduce(["list", *here]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("table6", "all "))]
    assert len(rows) == 2
    assert all(row.endswith(f"  {time}") and row.split()[-len(time.split()) - 5 :][0] == "4" for row in rows)
