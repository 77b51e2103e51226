"""Bad usage, and what does not fit into memory: one line, exit code 2, nothing written."""

import re

import pytest
import torch
from conftest import call, runner
from forked import ROOT, refusal

import utils.run.build
from models.method import Method
from utils.config.registry import DATASETS

DIGITS = ["--dataset", "seq-digits", "--num_filters", "4"]
SGD = ["--model", "sgd", *DIGITS]
ER = ["--model", "er", *DIGITS]
ADA = ["--norm", "adab2n"]


def check_refusal(finished, words):
    line = refusal(finished)
    for word in words:
        assert word in line


def test_no_flags_are_five_lines_of_usage():
    ended = call([])
    assert (ended.code, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 5)
    assert "--list" in ended.stderr


@pytest.mark.parametrize(
    ("error", "keyword"),
    [
        (MemoryError(), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."), "out of memory"),
        (OSError(28, "No space left on device"), "make room"),
        (None, "--lr"),
    ],
)
def test_run_that_fails_for_want_of_room_or_range_is_one_line(run_main, monkeypatch, error, keyword):
    if error:
        monkeypatch.setattr(Method, "step", lambda *_: raise_error(error))
    ended = run_main(*SGD, "--debug_mode", "--lr", "1e308")
    assert (ended.code, ended.record["status"]) == (1, "failed")
    (line,) = ended.stderr.splitlines()
    assert keyword in line


@pytest.mark.parametrize(
    ("error", "code"), [(MemoryError(), 1), (ImportError("libtorch.so: failed to map segment from shared object"), 2)]
)
def test_memory_that_ends_before_the_run_begins_is_one_line(monkeypatch, error, code):
    monkeypatch.setattr("main.parse", lambda _: raise_error(error))
    ended = call(SGD)
    (line,) = ended.stderr.splitlines()
    assert (ended.code, ended.stdout) == (code, "")
    assert "out of memory" in line


def raise_error(error):
    raise error


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--model", "derp", *DIGITS], ["unknown model 'derp'", "did you mean", "derpp", "er_ace_lider"]),
        (["--model", "er", "--norm", "adabn", *DIGITS], ["unknown norm 'adabn'", "adab2n"]),
        (["--model", "er", "--dataset", "seq-cifar"], ["unknown dataset", "did you mean", "seq-cifar10"]),
        ([*SGD[:-2], "--backbone", "resnet"], ["unknown backbone", "did you mean resnet18", "mlp"]),
        ([*ER, "--buffersize", "10"], ["unknown flag --buffersize", "did you mean --buffer_size"]),
        ([*SGD, "stray"], ["unexpected argument 'stray'"]),
        ([], ["--model is missing", "derpp", "sgd"]),
        (["--model", "sgd"], ["--dataset is missing", "seq-digits", "seq-folder"]),
        ([*SGD, "--buffer_size", "10"], ["--buffer_size has no effect with --model sgd"]),
        (["--model", "joint", *DIGITS, "--buffer_mode", "ring"], ["--buffer_mode has no effect with --model joint"]),
        ([*ER, "--kappa", "0.5"], ["--kappa", "adab2n", "is an option of"]),
        ([*ER, "--groups", "4"], ["--groups", "gn", "cn", "is an option of"]),
        ([*ER, "--ring_quota", "class"], ["--ring_quota", "is an option of ring"]),
        ([*ER, *ADA, "--kappa", "1.5"], ["--kappa", "from 0 to 1", "1.5"]),
        ([*ER, *ADA, "--eta", "0"], ["--eta", "ends excluded"]),
        ([*ER, "--results_path="], ["--results_path", "a folder"]),
        ([*ER, "--lr", "nan"], ["--lr", "nan"]),
        ([*ER, "--lr", "fast"], ["--lr", "a number", "fast"]),
        ([*ER, "--batch_size", "-3"], ["--batch_size", "from 1 to 1000000", "-3"]),
        ([*ER, "--batch_size", "2.5"], ["--batch_size", "integer"]),
        ([*ER, "--n_tasks", "3"], ["--n_tasks 3"]),
        ([*ER, "--validation", "0.001"], ["--validation 0.001", "without data"]),
        ([*ER, "--validation", "0.1", "--hold_out", "0.1"], ["--validation", "--hold_out", "contradict"]),
        (["--model", "joint", *ER[2:], "--classifier", "seen"], ["--classifier", "--model joint"]),
        (["--model", "er", "--dataset", "perm-digits", "--classifier", "seen"], ["--classifier seen", "perm-digits"]),
        ([*ER, "--lr_milestones", "5,3"], ["--lr_milestones", "rising"]),
        ([*ER, "--scenario", "onlin"], ["--scenario", "online", "offline"]),
        ([*ER, "--device", "gpu"], ["--device", "cuda:N"]),
        (["--model", "er_ace_lider", *ER[2:-2], "--backbone", "mlp"], ["--model er_ace_lider", "--backbone mlp"]),
        ([*ER, "--buffer_mode", "ring", "--buffer_size", "4"], ["--buffer_size 4", "task (5)"]),
        ([*ER, "--buffer_mode", "class_balanced", "--buffer_size", "9"], ["--buffer_size 9", "class (10)"]),
        ([*ER, "--buffer_mode", "rong"], ["unknown buffer", "did you mean ring", "class_balanced"]),
        ([*ER, "--probe", "stability,weight"], ["--probe", "stability, statistics, weights"]),
        ([*ER, "--wandb_entity", "me"], ["--wandb_entity needs --wandb_project"]),
        ([*ER, "--tf32", "--deterministic"], ["--tf32", "--deterministic"]),
        ([*ER, "--amp", "bfloat16", "--dtype", "float64"], ["--amp", "--dtype"]),
        ([*ER, "--optimizer", "adam", "--optim_mom", "0.9"], ["--optim_mom"]),
        ([*ER, "--nesterov"], ["--nesterov"]),
        ([*ER, "--n_iters", "5", "--n_epochs", "2"], ["--n_iters", "--n_epochs"]),
        ([*ER, "--n_iters", "5", "--lr_milestones", "2"], ["--lr_milestones"]),
        ([*ER, "--stop_after", "6"], ["--stop_after 6"]),
        ([*ER, "--drop_last", "--batch_size", "300"], ["--drop_last"]),
        (["--model", "gdumb", *DIGITS, "--optimizer", "adam"], ["--optimizer"]),
        ([*SGD, "--eval_statistics", "buffer"], ["--model sgd"]),
        (["--model", "icarl", *DIGITS, "--eval_statistics", "batch"], ["--model icarl"]),
        ([*ER, "--norm", "ln", "--eval_statistics", "batch"], ["running statistics"]),
        ([*ER, "--norm", "gn", "--groups", "4", "--eval_statistics", "buffer", "--dry_run"], ["running statistics"]),
        (["--check_data", "--dataset", "seq-miniimg", "--base_path", "no/where"], ["--base_path"]),
        (["--check_data"], ["--dataset"]),
        (["--check_data", "--dataset", "seq-digits", "--dry_run"], ["--dry_run"]),
        (["--check_data", "--eval_only", "x"], ["--eval_only"]),
        (["--model", "er", "--dataset", "seq-folder", "--n_tasks", "2", "--base_path", "no/where"],
         ["no/where", "--base_path"]),
        # noticed when the data are read or the network is built
        ([*ER, "--norm", "gn"], ["32 groups do not divide 4 channels", "--groups"]),
        ([*ER[:-2], "--backbone", "mlp", "--norm", "in"], ["normalization of a single value", "--norm"]),
        (["--model", "er", "--dataset", "seq-miniimg", "--base_path", "no/where"],
         ["no/where", "--base_path", "train_x.npy", "mini-imagenet-cache-train.pkl"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else None,
)  # fmt: skip
def test_bad_usage_is_one_line_and_writes_nothing(run_main, results, argv, words):
    check_refusal(run_main(*argv), words)
    assert not results.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_missing_cuda_is_one_line(run_main, results):
    check_refusal(run_main(*SGD, "--device", "cuda:1"), ["--device cuda:1"])
    assert not results.exists()


def test_file_in_the_way_of_the_results_names_the_flag(tmp_path):
    (tmp_path / "file").write_text("in the way")
    check_refusal(runner(tmp_path / "file")(*SGD, "--debug_mode"), [str(tmp_path / "file"), "--results_path"])
    assert (tmp_path / "file").read_text() == "in the way"


# --- what does not fit into memory ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [MemoryError(), MemoryError("Unable to allocate 7 GiB"), RuntimeError("can't allocate memory: you tried 7 bytes")],
)
def test_refused_allocation_is_one_line(run_main, results, monkeypatch, error):
    def refusing(*_, **__):
        raise error

    monkeypatch.setattr(utils.run.build, "Buffer", refusing)
    check_refusal(run_main(*ER), ["--model er", "memory", "make it smaller"])
    monkeypatch.undo()
    monkeypatch.setattr(DATASETS.get("seq-digits").build, "stream", refusing)
    check_refusal(run_main(*ER), ["the data", "memory"])
    assert not results.exists()


def rows_of_mammoth():
    """Yield a command of mammoth, for every row of the page's table, and the flags to use instead."""
    table = (ROOT / "docs/from_mammoth.md").read_text().split("## Flags")[1].split("## Files")[0]
    for row in re.findall(r"^\| (`-.*?) \| (.*?) \|", table, flags=re.MULTILINE):
        theirs, ours = (re.findall(r"`([^`]+)`", cell.partition(" (")[0]) for cell in row)
        for k, command in enumerate(theirs):
            if command not in ours:
                wanted = ours[k] if len(theirs) == len(ours) else row[1]
                yield command.replace(" N", " 3"), re.findall(r"--\w+", wanted) or ["remove"]


@pytest.mark.parametrize(("command", "wanted"), [*rows_of_mammoth()])
def test_flag_of_mammoth_names_its_equivalent(command, wanted):
    flag, *rest = command.split()
    is_known = wanted == [flag]  # but has no value here
    check_refusal(call([*ER, flag, *rest]), [*wanted, "no value" if is_known else f"{flag} is a flag of mammoth"])


def test_all_flags_of_mammoth_are_in_one_line():
    words = ["--nowand", "1", "--load_best_args", "--lrr", "1", "--savecheck=last"]
    check_refusal(call([*ER, *words]), ["--nowand is", "--load_best_args is", "--savecheck is", "--wandb_project"])
