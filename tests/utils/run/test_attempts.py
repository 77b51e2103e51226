"""--rerun, processes that are killed at any moment, logs that go on, and the conditions of a run."""

import contextlib
import json
import os

import pytest
import torch
from conftest import ANSWERED, goes_on, runner
from stopped_runs import Stop, observers_added, stopped

import utils.run.execution
import utils.run.observers
from models.method import Method
from tests.models.cut_off import Killed, Steps
from tests.outcomes import change_record, outcome
from utils.run.records import conditions

COMMAND = ["--model", "er", "--norm", "adab2n", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4"]
COMMAND += ["--debug_mode", "--buffer_size", "20", "--save_model", "--checkpoint_every", "2", "--log_every", "1"]
STEPS, STOPPED_AT = 15, 8
WHOLE = {"config.json", "lock", "metrics.jsonl", "model.safetensors", "record.json"}


@contextlib.contextmanager
def failing(at, error):
    """A step that raises this."""
    original = Method.step

    def step(self, batch, index):
        if index.step == at:
            raise error
        return original(self, batch, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Method, "step", step)
        yield


def names(folder):
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """What the command leaves when nothing happens to it."""
    results = tmp_path_factory.mktemp("straight")
    assert runner(results)(*COMMAND).code == 0
    return outcome(results)


def is_like(results, straight):
    """Whether all is as after an undisturbed run, but for the flag and the record before."""
    ended = outcome(results)
    ended["record"]["config"]["rerun"] = False
    ended["files"] = [name for name in ended["files"] if name != "record.old.json"]
    return ended == straight


# --- rerun ------------------------------------------------------------------------------------------------------------


def test_rerun_keeps_the_record_before_and_starts_from_the_beginning(results, straight):
    first = runner(results)(*COMMAND)
    with observers_added(steps := Steps()):
        second = runner(results)(*COMMAND, "--rerun")
    assert (second.code, second.stderr) == (0, "")
    assert steps.done == [*range(STEPS)]
    assert json.loads((first.folder / "record.old.json").read_text()) == first.record != second.record
    assert names(first.folder) == WHOLE | {"record.old.json"}
    assert is_like(results, straight)
    assert ANSWERED.fullmatch(runner(results)(*COMMAND).stderr)


@pytest.mark.parametrize(("flags", "first"), [([], STOPPED_AT), (["--rerun"], 0)])
def test_interrupted_rerun_is_resumed_by_the_plain_command_and_restarted_by_another(results, straight, flags, first):
    finished = runner(results)(*COMMAND)
    folder = stopped(results, *COMMAND, "--rerun", at=STOPPED_AT)
    assert not (folder / "record.json").exists()
    with observers_added(steps := Steps()):
        assert runner(results)(*COMMAND, *flags).code == 0
    assert steps.done == [*range(first, STEPS)]
    assert json.loads((folder / "record.old.json").read_text()) == finished.record
    assert is_like(results, straight)


@pytest.mark.parametrize(
    ("flags", "error"), [([], IndexError("no such thing")), (["--rerun"], IndexError("no")), ([], SystemExit(0))]
)
def test_failed_run_says_so_and_goes_on_without_the_flag(results, straight, flags, error):
    if flags:
        runner(results)(*COMMAND)
    with failing(at=10, error=error):
        failed = runner(results)(*COMMAND, *flags)
    assert failed.code == 1
    assert failed.stderr.startswith("Traceback ")  # of the method's own code, for its author
    assert failed.stderr.splitlines()[-1] == f"error: {type(error).__name__}: {error}"
    assert failed.stdout == f"record: {failed.folder / 'record.json'}\n"
    assert failed.record["status"] == "failed"
    assert "results" not in failed.record
    assert ("record.old.json" in names(failed.folder)) == bool(flags)
    again = runner(results)(*COMMAND)
    assert (again.code, again.stderr) == (0, goes_on(9))
    assert is_like(results, straight)


# --- kills ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def killed_before(nth):
    """From the nth rename or removal of a file on, the process does neither: as if it had been killed there."""
    count = 0

    def or_killed(original):
        def act(*arguments, **options):
            nonlocal count
            count += 1
            if count >= nth:
                raise Killed
            return original(*arguments, **options)

        return act

    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "unlink"):
            patch.setattr(os, name, or_killed(getattr(os, name)))
        yield


@pytest.mark.parametrize("flags", [[], ["--rerun"]], ids=["first", "rerun"])
def test_killed_before_any_change_of_a_file_the_plain_command_has_the_same_end(tmp_path, straight, flags):
    """With the steps of a checkpoint so long that only those at the ends of the five tasks are written."""
    command = [*COMMAND, "--checkpoint_every", "100"]
    for nth in range(1, 100):
        results = tmp_path / str(nth)
        run = runner(results)
        before = run(*command).record if flags else None
        try:
            with killed_before(nth):
                assert run(*command, *flags).code == 0
            break
        except Killed:
            finished = run(*command)
            assert finished.code == 0, nth
            assert names(finished.folder) - {"record.old.json"} == WHOLE, nth
            assert finished.record["results"] == straight["record"]["results"], nth
            ended = outcome(results)
            assert (ended["log"], ended["network"]) == (straight["log"], straight["network"]), nth
            if (finished.folder / "record.old.json").exists():
                assert json.loads((finished.folder / "record.old.json").read_text()) == before
    assert nth >= 15


# --- conditions -------------------------------------------------------------------------------------------------------


def test_conditions_have_what_auto_chose_and_what_chooses_kernels(results, monkeypatch):
    (auto,) = runner(results)(*COMMAND).record["conditions"]
    assert auto["device"].startswith("cpu (")
    assert (auto["num_threads"], auto["torch"], auto["tf32"]) == (1, torch.__version__, None)  # on a CPU
    assert auto["instruction_set"]
    assert auto["norm_impl"] in ("compiled", "fused")
    (named,) = runner(results)(*COMMAND, "--norm_impl", auto["norm_impl"], "--rerun").record["conditions"]
    assert auto == named
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    (other,) = runner(results)(*COMMAND, "--norm", "bn", "--deterministic").record["conditions"]
    torch.use_deterministic_algorithms(False)
    assert (other["norm_impl"], other["variables"]) == ("torch", "MKL_CBWR=COMPATIBLE")
    assert (other["deterministic"], other["compile"]) == (True, False)


def test_every_change_of_conditions_is_reported_and_recorded(results):
    """One implementation, then another of another torch, then the first again, which is none."""
    stopped(results, *COMMAND, "--norm_impl", "fused", at=STOPPED_AT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils.run.execution, "conditions", lambda *where: conditions(*where) | {"torch": "9.9"})
        with observers_added(Stop({11})):
            second = runner(results)(*COMMAND, "--norm_impl", "reference")
    note, warning, _ = second.stderr.splitlines(keepends=True)
    assert note == goes_on(STOPPED_AT)
    assert warning.startswith("warning: ")
    assert "norm_impl reference instead of fused, torch 9.9 instead of " in warning
    third = runner(results)(*COMMAND, "--norm_impl", "fused")
    assert (third.code, third.stderr) == (0, goes_on(11))
    noted = [(each["norm_impl"], each["torch"]) for each in third.record["conditions"]]
    assert noted == [("fused", str(torch.__version__)), ("reference", "9.9")]


OTHER_CONDITIONS = [
    ({"num_threads": 2}, "num_threads 1 instead of 2"),
    ({"instruction_set": "GenuineIntel amx_bf16"}, "instruction_set"),
    ({"variables": "MKL_CBWR=AVX2"}, "MKL_CBWR=AVX2"),
    ({"deterministic": True}, "deterministic"),
    ({"compile": True}, "compile"),
    ({"instruction_set": None, "norm_impl": None}, ""),  # unknown
]


def test_stored_result_of_other_conditions_says_so(results):
    finished = runner(results)(*COMMAND)
    for recorded, keyword in OTHER_CONDITIONS:
        change_record(finished.folder, conditions=[finished.record["conditions"][0] | recorded])
        ended = runner(results)(*COMMAND)
        note, *warnings = ended.stderr.splitlines(keepends=True)
        assert (ended.code, len(warnings)) == (0, bool(keyword))
        assert ANSWERED.fullmatch(note)
        assert keyword in "".join(warnings)


def test_seeds_of_different_conditions_are_named_beside_their_mean(results):
    small = [*COMMAND, "--stop_after", "1"]
    first = runner(results)(*small)
    change_record(first.folder, conditions=[first.record["conditions"][0] | {"instruction_set": "GenuineIntel avx2"}])
    ended = runner(results)(*small, "--seeds", "0,1")
    assert [line for line in ended.stderr.splitlines() if "different instruction sets" in line]
