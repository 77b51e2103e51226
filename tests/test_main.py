"""Whole commands: what a run prints, writes, repeats and refuses, and how its options resolve."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ANSWERED, call, runner
from PIL import Image
from safetensors.torch import load_file, save_file

import utils.run.build
import utils.run.saved_model
import utils.run.training
from utils.config import loop_options
from utils.config.arguments import resolve
from utils.config.registry import BACKBONES, DATASETS, MODELS, NORMS
from utils.run import metrics
from utils.run.build import Data
from utils.tables import accuracy_table

DIGITS = ["--dataset", "seq-digits", "--num_filters", "4"]
TINY = [*DIGITS, "--debug_mode"]
METHODS = ["sgd", "joint", "er", "er_ace", "derpp", "er_ace_lider", "derpp_lider"]
TIMES = ("date", "seconds", "wall_seconds", "steps_per_second", "seal")


def without_times(record):
    kept = {name: value for name, value in record.items() if name not in TIMES}
    kept["environment"] = {k: v for k, v in record["environment"].items() if k != "peak_memory_mb"}
    kept["config"] = {k: v for k, v in record["config"].items() if k != "rerun"}
    return kept


def log_lines(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def refuse_to_train(monkeypatch):
    monkeypatch.setattr(utils.run.training.Training, "run", lambda *args: pytest.fail("trained again"))


# --- a whole run ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """DER++ with AdaB2N on all digits: (what runs there, how the first run ended, its log)."""
    run = runner(tmp_path_factory.mktemp("whole"))
    finished = run("--model", "derpp", "--norm", "adab2n", *DIGITS)
    return run, finished, log_lines(finished.folder)


def test_run_ends_with_its_record_and_nothing_on_standard_error(whole):
    _, finished, _ = whole
    assert finished.code == 0
    assert finished.stdout.splitlines()[-1] == f"record: {finished.folder / 'record.json'}"
    assert finished.stderr == ""
    assert finished.record["status"] == "finished"
    assert finished.record["run"] == finished.folder.name
    assert re.fullmatch(r"derpp-adab2n-seq-digits-online-m200-s0-[0-9a-f]{12}", finished.folder.name)


def test_record_holds_both_matrices_up_to_the_next_task(whole):
    results = whole[1].record["results"]
    assert set(results) == {"class_il", "task_il"}
    for result in results.values():
        matrix = result["matrix"]
        assert [len(row) for row in matrix] == [5] * 5
        for i, row in enumerate(matrix):
            assert [value is None for value in row] == [j > i + 1 for j in range(5)]
            assert all(0 <= value <= 100 for value in row if value is not None)
    for i in range(5):
        for j in range(min(i + 2, 5)):
            assert results["class_il"]["matrix"][i][j] <= results["task_il"]["matrix"][i][j]


def test_metrics_of_the_record_are_those_of_its_matrices(whole):
    for result in whole[1].record["results"].values():
        a, untrained = result["matrix"], result["untrained"]
        assert result["metrics"] == metrics.summary(a, untrained)
        assert result["metrics"]["faa"] == pytest.approx(np.mean(a[4]))
        assert result["metrics"]["bwt"] == pytest.approx(np.mean([a[4][j] - a[j][j] for j in range(4)]))
        assert result["metrics"]["fwt"] == pytest.approx(np.mean([a[j - 1][j] - untrained[j] for j in range(1, 5)]))
        best = [max(a[i][j] for i in range(j, 4)) for j in range(4)]
        assert result["metrics"]["forgetting"] == pytest.approx(np.mean(best) - np.mean(a[4][:4]))


def test_run_learns_more_than_the_last_task(whole):
    results = whole[1].record["results"]
    assert results["class_il"]["metrics"]["faa"] > 40
    assert results["task_il"]["metrics"]["faa"] > 75


def test_record_says_what_ran_on_what(whole):
    record = whole[1].record
    assert record["steps"] == 145
    assert record["steps_per_second"] == pytest.approx(145 / record["seconds"])
    assert record["wall_seconds"] > record["seconds"] > 0
    config = record["config"]
    selected = [config[name] for name in ("model", "norm", "dataset", "backbone")]
    assert selected == ["derpp", "adab2n", "seq-digits", "resnet18"]
    assert [config[name] for name in ("lr", "alpha", "beta", "kappa")] == [0.01, 0.1, 0.5, 0.7]
    assert (config["buffer_size"], config["minibatch_size"], config["replay_forward"]) == (200, 10, "joint")
    assert record["data"]["reported_on"] == "test set"
    assert record["data"]["test_sizes"] == [73, 73, 74, 73, 71]
    assert sum(record["data"]["train_sizes"]) + sum(record["data"]["test_sizes"]) == 1797
    environment = record["environment"]
    assert environment["num_threads"] == 1
    assert environment["torch"] == torch.__version__
    assert environment["numpy"] == np.__version__
    assert environment["peak_memory_mb"] > 100
    assert {"device", "device_type", "python", "torchvision", "commit", "peak_cuda_memory_mb"} <= set(environment)


def test_identity_has_what_changes_numbers_and_nothing_else(whole):
    identity, config = whole[1].record["identity"], whole[1].record["config"]
    for name in ("model", "norm", "lr", "seed", "kappa", "num_filters", "class_order_seed", "debug_mode", "dtype"):
        assert identity[name] == config[name]
    assert identity["numerics_version"] >= 1
    hidden = {"device", "num_threads", "log_every", "results_path", "notes", "rerun", "save_model", "non_verbose"}
    assert hidden & set(config) == hidden
    assert not hidden & set(identity)


def test_tables_on_standard_output_hold_the_numbers(whole):
    _, finished, _ = whole
    results = finished.record["results"]
    for setting, title in (("class_il", "Class-IL"), ("task_il", "Task-IL")):
        matrix = results[setting]["matrix"]
        assert f"{title} accuracy, %" in finished.stdout
        row = [f"{value:.2f}" for value in (*matrix[4], results[setting]["metrics"]["faa"])]
        assert f"after task 5 {' '.join(row)}" in re.sub(" +", " ", finished.stdout)
    (faa,) = [line for line in finished.stdout.splitlines() if "(FAA)" in line]
    assert faa.split()[-2:] == [f"{results[s]['metrics']['faa']:.2f}" for s in ("class_il", "task_il")]


def test_log_has_losses_and_evaluations_in_order(whole):
    _, finished, log = whole
    steps = [line["step"] for line in log if line["event"] == "log"]
    assert steps == [29, 58, 87, 116, 145]
    assert all(np.isfinite(line["loss"]) and line["lr"] == 0.01 for line in log if line["event"] == "log")
    evaluated = [line for line in log if line["event"] == "evaluation"]
    assert [line["step"] for line in evaluated] == steps
    rows = finished.record["results"]["class_il"]["matrix"]
    assert [line["accuracy"]["class_il"] for line in evaluated] == [
        [value for value in row if value is not None] for row in rows
    ]
    assert json.loads((finished.folder / "config.json").read_text()) == finished.record["config"]


def test_rerun_gives_the_same_bits_and_the_plain_command_answers_from_the_record(whole, monkeypatch):
    run, first, first_log = whole
    second = run("--model", "derpp", "--norm", "adab2n", *DIGITS, "--rerun")
    assert second.code == 0
    assert second.folder == first.folder
    assert second.stderr == ""
    assert (first.record["attempt"], second.record["attempt"]) == (1, 2)
    assert without_times(second.record) == without_times(first.record) | {"attempt": 2}
    assert log_lines(second.folder) == first_log
    refuse_to_train(monkeypatch)
    third = run("--model", "derpp", "--norm", "adab2n", *DIGITS)
    assert third.code == 0
    assert ANSWERED.fullmatch(third.stderr)
    assert third.record == second.record
    assert third.stdout == second.stdout


# --- which commands are the same run --------------------------------------------------------------------------


def run_folder(run, *flags):
    finished = run("--model", "derpp", *DIGITS, *flags, "--dry_run")
    assert finished.code == 0, finished.stderr
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("folder: ")]
    return Path(line.removeprefix("folder: ").removesuffix(" (not finished)")).name


@pytest.mark.parametrize(
    "flags",
    [
        ["--log_every", "7"],
        ["--notes", "a remark"],
        ["--num_threads", "2"],
        ["--device", "cpu"],
        ["--save_model"],
        ["--rerun"],
        ["--wandb_project", "p"],
        ["--norm", "bn", "--backbone", "resnet18"],
        ["--lr", "0.01", "--batch_size", "10", "--minibatch_size", "10"],
        ["--class_order_seed", "0"],
        ["--replay_forward", "separate"],
    ],
)
def test_flags_that_change_no_number_are_the_same_run(run_main, flags):
    assert run_folder(run_main, *flags) == run_folder(run_main)


@pytest.mark.parametrize(
    "flags",
    [
        ["--lr", "0.04"],
        ["--seed", "1"],
        ["--class_order_seed", "1"],
        ["--norm", "adab2n"],
        ["--n_tasks", "2"],
        ["--alpha", "0.2"],
        ["--minibatch_size", "11"],
        ["--buffer_size", "100"],
        ["--buffer_mode", "ring"],
        ["--num_filters", "8"],
        ["--validation", "0.1"],
        ["--debug_mode"],
        ["--dtype", "float64"],
        ["--optim_mom", "0.9"],
        ["--scenario", "offline"],
        ["--replay_forward", "joint"],
    ],
)
def test_flags_that_change_numbers_are_another_run(run_main, flags):
    assert run_folder(run_main, *flags) != run_folder(run_main)


def test_joint_forward_is_what_auto_means_for_adab2n(run_main):
    ada = ["--norm", "adab2n"]
    assert run_folder(run_main, *ada, "--replay_forward", "joint") == run_folder(run_main, *ada)
    assert run_folder(run_main, *ada, "--replay_forward", "separate") != run_folder(run_main, *ada)


def test_preset_counts_only_through_the_switches_it_sets(run_main):
    paper = ["--fidelity", "paper"]
    assert run_folder(run_main, *paper) == run_folder(run_main, "--replay_forward", "joint")
    assert run_folder(run_main, *paper, "--replay_forward", "separate") == run_folder(run_main)


# --- every method, every norm ---------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
@pytest.mark.parametrize("model", METHODS)
def test_every_method_finishes(run_main, model, norm):
    finished = run_main("--model", model, "--norm", norm, *TINY)
    assert finished.code == 0
    assert finished.stderr == ""
    results = finished.record["results"]
    assert list(results) == ["class_il", "task_il"]
    rows = 1 if model == "joint" else 5
    for result in results.values():
        assert len(result["matrix"]) == rows
        assert None not in result["matrix"][-1]
    assert finished.record["steps"] == 3 * rows
    assert finished.record["config"]["model"] == model


@pytest.mark.parametrize(
    ("norm", "flags"),
    [
        ("bn", []),
        ("ln", []),
        ("in", []),
        ("gn", ["--groups", "4"]),
        ("cn", ["--groups", "4"]),
        ("adab2n", ["--fidelity", "paper", "--lambd", "1e-3"]),
        ("brn", ["--brn_warmup", "5"]),
        ("sn", []),
        ("none", []),
        ("bn_frozen", ["--freeze_after", "2"]),
    ],
)
def test_every_norm_finishes(run_main, norm, flags):
    finished = run_main("--model", "er_ace", "--norm", norm, *flags, *TINY)
    assert finished.code == 0
    assert finished.record["config"]["norm"] == norm
    assert finished.record["results"]["task_il"]["metrics"]["faa"] > 20


def test_joint_training_has_one_row_and_no_forgetting(run_main):
    finished = run_main("--model", "joint", *TINY)
    for result in finished.record["results"].values():
        assert len(result["matrix"]) == 1
        assert result["metrics"]["faa"] == result["metrics"]["caa"] == pytest.approx(np.mean(result["matrix"][0]))
        for name in ("forgetting", "forgetting_as_published", "bwt", "fwt"):
            assert result["metrics"][name] is None
    assert "after all tasks" in finished.stdout


def test_mlp_and_ring_buffer_and_float64_finish(run_main):
    flags = ["--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "16", "--buffer_mode", "ring", "--debug_mode"]
    finished = run_main("--model", "derpp", *flags, "--dtype", "float64", "--norm", "adab2n")
    assert finished.code == 0
    assert finished.record["config"]["ring_quota"] == "task"
    assert finished.record["config"]["hidden"] == 16


# --- failure --------------------------------------------------------------------------------------------------


def test_diverged_run_says_so_and_is_run_again(run_main, results, monkeypatch):
    command = ["--model", "derpp", "--lr", "1e20", *TINY]
    finished = run_main(*command)
    assert finished.code == 1
    (line,) = finished.stderr.splitlines()
    assert line.startswith("error: the loss became ")
    step = int(re.search(r"at step (\d+), task 1:", line)[1])
    assert 1 <= step <= 3
    assert "--lr" in line
    assert finished.record["status"] == "failed"
    assert f"error: {finished.record['reason']}" == line
    assert "results" not in finished.record
    assert finished.stdout == f"record: {finished.folder / 'record.json'}\n"

    trained, original = [], utils.run.training.Training.run
    monkeypatch.setattr(utils.run.training.Training, "run", lambda *args: trained.append(1) or original(*args))
    again = run_main(*command)
    assert again.code == 1
    assert trained == [1]


def test_batch_that_a_norm_cannot_use_ends_without_a_traceback(run_main):
    finished = run_main("--model", "sgd", "--dataset", "seq-digits", "--backbone", "mlp", "--batch_size", "1")
    assert finished.code in (1, 2)
    assert len(finished.stderr.splitlines()) == 1


# --- dry run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        (["--model", "derpp", "--norm", "adab2n"], "145 in 5 tasks"),
        (["--model", "joint"], "144 in 1 task"),
        (["--model", "er", "--scenario", "offline"], f"{50 * 46} in 5 tasks"),
        (["--model", "er", "--n_tasks", "2", "--batch_size", "100", "--n_epochs", "3"], "48 in 2 tasks"),
        (["--model", "sgd", "--debug_mode"], "15 in 5 tasks"),
    ],
)
def test_dry_run_tells_the_cost_and_writes_nothing(run_main, results, flags, steps):
    finished = run_main(*flags, *DIGITS, "--dry_run")
    assert finished.code == 0
    assert finished.stderr == ""
    lines = finished.stdout.splitlines()
    assert lines[0] == "configuration"
    assert {"  lr = 0.01", "  num_filters = 4", "  seed = 0", "  validation = -"} <= set(lines)
    assert f"steps: {steps}" in lines
    (folder,) = [line for line in lines if line.startswith("folder: ")]
    assert folder.startswith(f"folder: {results}/runs/{flags[1]}-")
    assert folder.endswith(" (not finished)")
    memory = re.fullmatch(r"memory: about \d+ MB \(data ([\d.]+), buffer ([\d.]+), .*\)", lines[-1])
    assert float(memory[1]) == pytest.approx(1797 * 256 / 1e6, abs=0.05)
    assert not results.exists()


def test_dry_run_needs_no_data_and_knows_a_finished_run(run_main, results, tmp_path):
    finished = run_main(
        "--model", "er", "--dataset", "seq-cifar100", "--base_path", str(tmp_path / "none"), "--dry_run"
    )
    assert finished.code == 0
    assert "steps: 5000 in 20 tasks" in finished.stdout
    run_main("--model", "sgd", *TINY)
    before = sorted(results.rglob("*"))
    assert "(finished)" in run_main("--model", "sgd", *TINY, "--dry_run").stdout
    assert sorted(results.rglob("*")) == before


# --- saved networks -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["bn", "adab2n"])
def saved(request, tmp_path_factory):
    """(what runs there, how the run that saved its network ended, the file)."""
    run = runner(tmp_path_factory.mktemp("saved"))
    finished = run("--model", "er", "--norm", request.param, "--save_model", "--seed", "2", *TINY)
    return run, finished, finished.folder / "model.safetensors"


def test_saved_network_has_exactly_the_accuracies_of_the_last_row(saved, monkeypatch):
    _, finished, path = saved
    measured, original = [], utils.run.saved_model.accuracies
    monkeypatch.setattr(
        utils.run.saved_model, "accuracies", lambda *args: measured.append(original(*args)) or measured[-1]
    )
    evaluated = call(["--eval_only", str(path)])
    assert evaluated.code == 0
    last = {setting: result["matrix"][-1] for setting, result in finished.record["results"].items()}
    assert measured == [last]
    for setting, row in last.items():
        assert accuracy_table(setting, [row], {"debug_mode": True}) in evaluated.stdout
    assert f"norm {finished.record['config']['norm']}" in evaluated.stdout.splitlines()[0]


def test_flags_that_agree_with_the_saved_network_are_fine(saved):
    _, _, path = saved
    assert call(["--eval_only", str(path), "--seed", "2", "--model", "er", "--device", "cpu"]).code == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--seed", "1"], "--seed 1 contradicts"),
        (["--model", "sgd"], "which was made with er"),
        (["--num_filters", "8"], "--num_filters 8 contradicts"),
        (["--n_tasks", "2"], "--n_tasks 2 contradicts"),
        pytest.param(
            ["--validation", "0.1"],
            "--validation 0.1 contradicts",
        ),
    ],
)
def test_flag_that_contradicts_the_saved_network_is_refused(saved, flags, words):
    _, _, path = saved
    refused = call(["--eval_only", str(path), *flags])
    assert refused.code == 2
    (line,) = refused.stderr.splitlines()
    assert words in line
    assert refused.stdout == ""


def test_saved_network_knows_where_its_data_were(tmp_path, monkeypatch):
    photos = tmp_path / "photos"
    for part in ("train", "test"):
        for k, name in enumerate(("ant", "bee", "cat", "dog")):
            (photos / part / name).mkdir(parents=True)
            for n in range(2):
                pixels = np.random.default_rng((k, n, len(part))).integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(photos / part / name / f"{n}.png")
    monkeypatch.chdir(tmp_path)
    words = ["--model", "er", "--dataset", "seq-folder", "--base_path", "photos", "--n_tasks", "2", "--image_size", "8"]
    finished = runner(tmp_path / "results")(*words, "--backbone", "mlp", "--save_model")
    assert finished.code == 0, finished.stderr
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    model = str(finished.folder / "model.safetensors")
    assert call(["--eval_only", model]).code == 0
    photos.rename(tmp_path / "pictures")
    refused = call(["--eval_only", model])
    assert refused.code == 2
    assert "--base_path" in refused.stderr
    assert call(["--eval_only", model, "--base_path", str(tmp_path / "pictures")]).code == 0


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_file_that_is_no_network_is_refused(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    refused = call(["--eval_only", str(path)])
    assert refused.code == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"error: {path} is not a network written by --save_model")


def test_missing_file_and_foreign_safetensors_are_refused(tmp_path):
    assert call(["--eval_only", str(tmp_path / "none")]).code == 2
    save_file({"a": torch.ones(2)}, tmp_path / "foreign.safetensors")
    refused = call(["--eval_only", str(tmp_path / "foreign.safetensors")])
    assert refused.code == 2
    assert "is not a network written by --save_model" in refused.stderr


def test_network_with_missing_tensors_is_refused(saved, tmp_path):
    from safetensors import safe_open

    tensors = load_file(saved[2])
    del tensors["classifier.weight"]
    with safe_open(saved[2], framework="pt") as file:
        save_file(tensors, tmp_path / "cut.safetensors", metadata=file.metadata())
    refused = call(["--eval_only", str(tmp_path / "cut.safetensors")])
    assert refused.code == 2
    assert len(refused.stderr.splitlines()) == 1


def test_finished_run_without_its_network_asks_for_a_rerun(run_main, monkeypatch):
    finished = run_main("--model", "sgd", *TINY)
    refused = run_main("--model", "sgd", *TINY, "--save_model")
    assert refused.code == 2
    (line,) = refused.stderr.splitlines()
    assert "--rerun" in line
    saved = run_main("--model", "sgd", *TINY, "--save_model", "--rerun")
    assert saved.code == 0
    assert (finished.folder / "model.safetensors").is_file()
    refuse_to_train(monkeypatch)
    assert run_main("--model", "sgd", *TINY, "--save_model").code == 0


# --- validation -----------------------------------------------------------------------------------------------


def test_validation_reports_on_held_out_training_data(run_main):
    finished = run_main("--model", "sgd", "--validation", "0.1", *TINY)
    data = finished.record["data"]
    assert data["reported_on"] == "validation split"
    assert data["test_sizes"] == [28, 29, 28, 28, 28]
    assert data["train_sizes"] == [259, 258, 261, 259, 255]
    for value in finished.record["results"]["class_il"]["matrix"][0][:1]:
        assert value * 28 / 100 == pytest.approx(round(value * 28 / 100))


def test_held_out_samples_do_not_depend_on_the_seed():
    streams = []
    for seed in (0, 5):
        config = resolve(
            {"model": "sgd", "dataset": "seq-digits", "validation": 0.1, "seed": seed, "class_order_seed": 0}
        )
        streams.append(Data(config).stream(torch.device("cpu")))
    first, second = streams
    assert torch.equal(first.test_data.images, second.test_data.images)
    assert torch.equal(first.train_data.images, second.train_data.images)


# --- usage errors ---------------------------------------------------------------------------------------------

SGD = ["--model", "sgd", *DIGITS]
ER = ["--model", "er", *DIGITS]
ADA = ["--norm", "adab2n"]


def check_refusal(finished, words):
    assert finished.code == 2
    assert finished.stdout == ""
    (line,) = finished.stderr.splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--model", "derp", *DIGITS], ["unknown model 'derp'", "did you mean", "derpp", "er_ace_lider"]),
        (["--model", "er", "--norm", "adabn", *DIGITS], ["unknown norm 'adabn'", "adab2n"]),
        (["--model", "er", "--dataset", "seq-cifar"], ["unknown dataset", "did you mean", "seq-cifar10"]),
        ([*SGD[:-2], "--backbone", "resnet"], ["unknown backbone", "did you mean resnet18", "mlp"]),
        ([*ER, "--buffersize", "10"], ["unknown flag --buffersize", "did you mean --buffer_size"]),
        ([*ER, "--buffersize=10"], ["unknown flag --buffersize", "did you mean --buffer_size"]),
        ([*ER, "--buffer", "10"], ["unknown flag --buffer"]),
        ([*SGD, "stray"], ["unexpected argument 'stray'"]),
        (["sgd"], ["unexpected argument 'sgd'"]),
        ([], ["--model is missing", "derpp", "sgd"]),
        (["--dataset", "seq-digits"], ["--model is missing", "derpp", "sgd"]),
        (["--model", "sgd"], ["--dataset is missing", "seq-digits", "seq-folder"]),
        (["--model"], ["--model", "expected one argument"]),
        ([*SGD, "--buffer_size", "10"], ["--buffer_size", "--model sgd has none"]),
        (["--model", "joint", *DIGITS, "--buffer_mode", "ring"], ["--buffer_mode", "--model joint has none"]),
        ([*SGD, "--replay_forward", "joint"], ["--replay_forward", "--model sgd has none"]),
        ([*ER, "--kappa", "0.5"], ["--kappa", "--norm adab2n", "not of --norm bn"]),
        ([*ER, "--groups", "4"], ["--groups", "--norm gn", "--norm cn", "not of --norm bn"]),
        ([*ER, "--alpha", "0.5"], ["--alpha", "--model derpp", "not of --model er"]),
        ([*ER, "--image_size", "8"], ["--image_size", "--dataset seq-folder", "not of --dataset seq-digits"]),
        ([*ER, "--base_path", "x"], ["--base_path", "not of --dataset seq-digits"]),
        ([*ER, "--hidden", "8"], ["--hidden", "--backbone mlp", "not of --backbone resnet18"]),
        ([*ER, "--ring_quota", "class"], ["--ring_quota needs --buffer_mode ring"]),
        ([*ER, *ADA, "--kappa", "1.5"], ["--kappa", "from 0 to 1", "1.5"]),
        ([*ER, *ADA, "--eta", "0"], ["--eta", "ends excluded"]),
        ([*ER, *ADA, "--ada_t0", "2"], ["--ada_t0", "from 0 to 1"]),
        ([*ER, "--lr", "nan"], ["--lr", "nan"]),
        ([*ER, "--lr", "inf"], ["--lr", "inf"]),
        ([*ER, "--lr", "-0.1"], ["--lr", "at least 0"]),
        ([*ER, "--lr", "fast"], ["--lr", "a number", "fast"]),
        ([*ER, "--batch_size", "-3"], ["--batch_size", "from 1 to 1000000", "-3"]),
        ([*ER, "--batch_size", "0"], ["--batch_size", "from 1 to 1000000"]),
        ([*ER, "--batch_size", "2.5"], ["--batch_size", "whole number"]),
        ([*ER, "--n_tasks", "3"], ["--n_tasks 3 does not divide the 10 classes"]),
        ([*ER, "--n_tasks", "20"], ["--n_tasks 20 does not divide"]),
        ([*ER, "--validation", "1"], ["--validation", "ends excluded"]),
        ([*ER, "--validation", "0.001"], ["--validation 0.001", "without data"]),
        ([*ER, "--lr_milestones", "5,3"], ["--lr_milestones", "rising"]),
        ([*ER, "--scenario", "onlin"], ["--scenario", "online, offline"]),
        ([*ER, "--device", "gpu"], ["--device", "cuda:N"]),
        (["--model", "er_ace_lider", *ER[2:-2], "--backbone", "mlp"], ["--model er_ace_lider", "--backbone mlp"]),
        ([*ER, "--buffer_mode", "ring", "--buffer_size", "4"], ["--buffer_size 4", "5 task shares"]),
        ([*ER, "--wandb_entity", "me"], ["--wandb_entity needs --wandb_project"]),
        (["--model", "er", "--dataset", "seq-folder", "--n_tasks", "2", "--base_path", "no/where"],
         ["no/where/train", "--base_path"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else None,
)  # fmt: skip
def test_bad_usage_is_one_line_and_writes_nothing(run_main, results, argv, words):
    check_refusal(run_main(*argv), words)
    assert not results.exists()


LATE = [  # noticed when the data are read or the network is built
    ([*ER, "--norm", "gn"], ["32 groups do not divide 4 channels", "--groups"]),
    ([*ER, "--norm", "cn", "--groups", "3"], ["3 groups do not divide 4 channels", "--groups"]),
    ([*ER[:-2], "--backbone", "mlp", "--norm", "in"], ["normalization of a single value", "--norm"]),
    ([*ER[:-2], "--backbone", "mlp", "--norm", "sn"], ["normalization of a single value", "--norm"]),
    (
        ["--model", "er", "--dataset", "seq-miniimg", "--base_path", "no/where"],
        ["no/where", "--base_path", "train_x.npy", "mini-imagenet-cache-train.pkl"],
    ),
]


@pytest.mark.parametrize(("argv", "words"), LATE)
def test_bad_usage_noticed_late_is_one_line_and_writes_nothing_too(run_main, results, argv, words):
    check_refusal(run_main(*argv), words)
    assert not results.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_missing_cuda_is_one_line(run_main, results, name):
    finished = run_main(*SGD, "--device", name)
    assert finished.code == 2
    assert finished.stderr.splitlines() == [
        f"error: --device {name}: this machine has 0 CUDA devices; use --device auto"
    ]
    assert not results.exists()


@pytest.mark.parametrize(
    "extra",
    [[], ["--rerun"]],
)
def test_file_in_the_way_of_the_results_names_the_flag(tmp_path, extra):
    (tmp_path / "file").write_text("in the way")
    finished = runner(tmp_path / "file")(*SGD, "--debug_mode", *extra)
    assert finished.code == 2
    (line,) = finished.stderr.splitlines()
    assert str(tmp_path / "file") in line
    assert "--results_path" in line
    assert (tmp_path / "file").read_text() == "in the way"


# --- what does not fit into memory ----------------------------------------------------------------------------


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(utils.run.build, "memory_of", lambda device: 20_000_000)


def test_buffer_that_cannot_fit_into_memory_is_refused_before_it_is_made(run_main, results, memory):
    words = ["--buffer_size 100000 needs 0.03 GB", "this device has 0.02"]
    check_refusal(run_main(*ER, "--buffer_size", "100000", "--debug_mode"), words)
    assert not results.exists()


@pytest.mark.parametrize(
    "error",
    [MemoryError(), MemoryError("Unable to allocate 7 GiB"), RuntimeError("can't allocate memory: you tried 7 bytes")],
)
def test_refused_allocation_is_one_line(run_main, results, monkeypatch, error):
    def refusing(*_, **__):
        raise error

    monkeypatch.setattr(utils.run.build, "Buffer", refusing)
    monkeypatch.setattr(utils.run.build, "buffer_bytes", lambda *_: 0)
    check_refusal(run_main(*ER), ["--model er does not fit into memory: ", "make it smaller"])
    monkeypatch.undo()
    monkeypatch.setattr(DATASETS.get("seq-digits").build, "stream", refusing)
    check_refusal(run_main(*ER), ["the data does not fit into memory: "])
    assert not results.exists()


# --- help and lists -------------------------------------------------------------------------------------------


def all_options():
    options = [*loop_options.RUN, *loop_options.TRAINING, *loop_options.OUTPUT, *loop_options.BUFFER]
    for registry in (MODELS, NORMS, DATASETS, BACKBONES):
        for entry in registry.entries().values():
            options += entry.options
    return options


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_has_every_group_and_flag(word):
    finished = call([word])
    assert (finished.code, finished.stderr) == (0, "")
    headings = re.findall(r"^(\S.*):$", finished.stdout, flags=re.MULTILINE)
    for title in ("what to run", "the run", "training", "output", "memory buffer and replay", "data sets", "methods",
                  "norms", "backbones"):  # fmt: skip
        assert title in headings
    flags = set(re.findall(r"^  (--\w+)", finished.stdout, flags=re.MULTILINE))
    wanted = {"--model", "--norm", "--dataset", "--backbone"} | {option.flag for option in all_options()}
    assert wanted <= flags
    assert len(wanted) > 50
    assert "(official: auto, paper: joint)" in finished.stdout


def test_help_fits_a_terminal_and_leaves_names_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = call(["--help"]).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    (dataset,) = [k for k, line in enumerate(lines) if line.startswith("  --dataset ")]
    shown = " ".join(lines[dataset : dataset + 4]).replace(",", " ").split()
    assert set(DATASETS.names()) <= set(shown)
    assert not [line for line in lines if line.endswith("-")]
    monkeypatch.setenv("COLUMNS", "300")
    assert 80 < max(map(len, call(["--help"]).stdout.splitlines())) <= 110


def test_help_names_values_by_what_they_are():
    text = call(["--help"]).stdout
    for words in ("--eval_only PATH", "--eval_every N", "--lr X", "--optim_mom X", "--checkpoint_every TIME",
                  "--results_path FOLDER", "--lr_milestones EPOCHS", "--device NAME", "--probe NAME,...",
                  "--plugins FOLDER", "--scenario {online,offline}", "--arch TEXT", "--config FILE"):  # fmt: skip
        assert f"  {words} " in text.replace("\n", " \n")
    assert "VALUE" not in text


def test_flags_may_have_dashes_for_underscores(run_main):
    words = ["--model", "er", *DIGITS, "--buffer-size=30", "--dry-run"]
    assert run_main(*words).stdout == run_main("--model", "er", *DIGITS, "--buffer_size", "30", "--dry_run").stdout


def test_help_has_the_list_flag_too():
    assert re.search(r"^  --list\b", call(["--help"]).stdout, flags=re.MULTILINE)


def test_list_names_everything_with_a_line():
    finished = call(["--list"])
    assert (finished.code, finished.stderr) == (0, "")
    lines = [line.split(maxsplit=1) for line in finished.stdout.splitlines() if line.startswith("  ")]
    for registry in (MODELS, NORMS, DATASETS, BACKBONES):
        for entry in registry.entries().values():
            assert [entry.name, entry.help] in lines
    only = call(["--list", "norms"]).stdout.splitlines()
    assert only[0] == "norms"
    assert len(only) == 1 + len(NORMS.names())
    assert call(["--list", "colours"]).stderr.startswith("error: --list colours: choose from models")


SWITCHES = {
    "--replay_forward": ("auto", "joint"),
    "--absent_tasks": ("counted", "ignored"),
    "--variance": ("mixture", "within"),
    "--eta_start": ("eta0", "eta1"),
    "--penalty_norm": ("mean", "sum"),
    "--running_var_start": ("1", "0"),
    "--penalty_steps": ("replay", "all"),
    "--ln_affine": ("element", "channel"),
    "--in_affine": ("none", "channel"),
    "--cn_affine": ("frozen", "learned"),
    "--ring_quota": ("task", "class"),
    "--lr_restart": ("never", "task"),
    "--lr": ("0.1", "0.03"),
}


def test_list_shows_both_values_of_the_thirteen_switches():
    finished = call(["--list", "switches"])
    rows = [line.split() for line in finished.stdout.splitlines() if line.startswith("  --")]
    assert {row[0]: (row[1], row[2]) for row in rows} == SWITCHES
    assert len(rows) == 13


# --- how options resolve --------------------------------------------------------------------------------------

USERS = {  # a command that has the switch
    "replay_forward": {"model": "derpp"},
    "ring_quota": {"model": "er", "buffer_mode": "ring"},
    "ln_affine": {"norm": "ln"},
    "in_affine": {"norm": "in"},
    "cn_affine": {"norm": "cn"},
    "lr_restart": {"dataset": "seq-miniimg", "scenario": "offline"},
    "lr": {"model": "sgd", "dataset": "seq-cifar10"},
}


def resolved(**flags):
    return resolve({"model": "er", "dataset": "seq-digits", **flags})


@pytest.mark.parametrize("name", [flag.removeprefix("--") for flag in SWITCHES])
def test_preset_sets_every_switch_and_an_explicit_flag_wins(name):
    flags = USERS.get(name, {"norm": "adab2n"})
    official, paper = SWITCHES[f"--{name}"]
    official = "separate" if name == "replay_forward" else official  # what auto means with bn
    assert str(getattr(resolved(**flags), name)) == official
    assert str(getattr(resolved(**flags, fidelity="official"), name)) == official
    assert str(getattr(resolved(**flags, fidelity="paper"), name)) == paper
    kind = type(getattr(resolved(**flags), name))
    for preset in ("official", "paper"):
        for value in (kind(official), kind(paper)):
            assert getattr(resolved(**flags, fidelity=preset, **{name: value}), name) == value


@pytest.mark.parametrize(
    ("dataset", "lr", "buffer_size", "n_tasks"),
    [
        ("seq-digits", 0.01, 200, 5),
        ("seq-cifar10", 0.03, 500, 5),
        ("seq-cifar100", 0.03, 2000, 20),
        ("seq-miniimg", 0.1, 2000, 20),
        ("seq-folder", 0.03, 500, None),
    ],
)
def test_defaults_of_a_data_set(dataset, lr, buffer_size, n_tasks):
    for scenario in ("online", "offline"):
        config = resolved(dataset=dataset, scenario=scenario)
        assert (config.lr, config.buffer_size, config.n_tasks) == (lr, buffer_size, n_tasks)
        assert (config.optim_wd, config.optim_mom) == (0, 0)


@pytest.mark.parametrize("model", ["derpp", "derpp_lider"])
@pytest.mark.parametrize(
    ("dataset", "buffer_size", "alpha", "beta"),
    [
        ("seq-cifar10", None, 0.2, 0.5),
        ("seq-cifar10", 500, 0.2, 0.5),
        ("seq-cifar10", 2000, 0.1, 1.0),
        ("seq-cifar100", None, 0.1, 0.5),
        ("seq-cifar100", 5000, 0.1, 0.5),
        ("seq-miniimg", 2000, 0.3, 0.8),
        ("seq-miniimg", 5000, 0.3, 0.8),
    ],
)
def test_weights_of_derpp_by_data_set_and_buffer(model, dataset, buffer_size, alpha, beta):
    flags = {} if buffer_size is None else {"buffer_size": buffer_size}
    config = resolved(model=model, dataset=dataset, **flags)
    assert (config.alpha, config.beta) == (alpha, beta)
    assert resolved(model=model, dataset=dataset, alpha=7.0, **flags).alpha == 7.0


@pytest.mark.parametrize(("model", "weights"), [("er_ace_lider", (0.1, 0.3)), ("derpp_lider", (0.3, 0.5))])
def test_weights_of_lider(model, weights):
    config = resolved(model=model)
    assert (config.alpha_lip, config.beta_lip, config.lip_targets) == (*weights, "constant")


@pytest.mark.parametrize(
    ("dataset", "scenario", "fidelity", "schedule"),
    [
        ("seq-cifar10", "offline", "official", ((), "task")),
        ("seq-cifar100", "online", "official", ((), "task")),
        ("seq-cifar100", "offline", "official", ((35, 45), "task")),
        ("seq-cifar100", "offline", "paper", ((35, 45), "task")),
        ("seq-miniimg", "online", "official", ((), "task")),
        ("seq-miniimg", "offline", "official", ((35, 60, 75), "never")),
        ("seq-miniimg", "offline", "paper", ((35, 60, 75), "task")),
    ],
)
def test_schedules(dataset, scenario, fidelity, schedule):
    config = resolved(dataset=dataset, scenario=scenario, fidelity=fidelity)
    assert (config.lr_milestones, config.lr_restart) == schedule
    if schedule[0]:
        assert config.lr_factor == {"seq-cifar100": 0.1, "seq-miniimg": 0.2}[dataset]


@pytest.mark.parametrize(
    ("flags", "epochs", "batch", "replay"),
    [
        ({}, 1, 10, 10),
        ({"scenario": "online", "batch_size": 32}, 1, 32, 32),
        ({"minibatch_size": 7}, 1, 10, 7),
        ({"scenario": "offline"}, 50, 32, 32),
        ({"scenario": "offline", "n_epochs": 2, "minibatch_size": 64}, 2, 32, 64),
    ],
)
def test_epochs_and_batches_of_the_scenarios(flags, epochs, batch, replay):
    config = resolved(dataset="seq-cifar100", **flags)
    assert (config.n_epochs, config.batch_size, config.minibatch_size) == (epochs, batch, replay)


@pytest.mark.parametrize(
    ("model", "dataset", "fidelity", "lr"),
    [
        ("sgd", "seq-cifar10", "official", 0.1),
        ("sgd", "seq-cifar10", "paper", 0.03),
        ("joint", "seq-cifar10", "official", 0.1),
        ("joint", "seq-cifar10", "paper", 0.03),
        ("er", "seq-cifar10", "official", 0.03),
        ("sgd", "seq-cifar100", "official", 0.03),
        ("sgd", "seq-miniimg", "official", 0.1),
    ],
)
def test_learning_rate_of_fine_tuning(model, dataset, fidelity, lr):
    assert resolved(model=model, dataset=dataset, fidelity=fidelity).lr == lr
    assert resolved(model=model, dataset=dataset, fidelity=fidelity, lr=0.5).lr == 0.5


def test_settings_of_adab2n():
    config = resolved(norm="adab2n", dataset="seq-cifar100")
    assert (config.kappa, config.lambd, config.eta, config.ada_t0) == (0.7, 0.01, 0.1, 0)
    assert resolved(norm="adab2n", dataset="seq-miniimg").lambd == 1e-3
    assert resolved(norm="adab2n", dataset="seq-miniimg", lambd=2.0).lambd == 2.0
    assert resolved(norm="gn", dataset="seq-cifar100").groups == 32
    for dataset in ("seq-cifar10", "seq-cifar100"):
        assert resolved(model="derpp", norm="adab2n", dataset=dataset).lambd == 0.1
        assert resolved(model="derpp", norm="adab2n", dataset=dataset, penalty_norm="sum").lambd == 0.001
    assert resolved(model="derpp", norm="adab2n", dataset="seq-digits").lambd == 0.01


@pytest.mark.parametrize(("model", "norm", "forward"), [
    ("derpp", "bn", "separate"), ("derpp", "adab2n", "joint"), ("er", "bn", "joint"), ("er", "gn", "joint"),
    ("er_ace", "cn", "separate"), ("er_ace_lider", "adab2n", "joint"),
])  # fmt: skip
def test_what_auto_means_for_the_replay_forward(model, norm, forward):
    assert resolved(model=model, norm=norm).replay_forward == forward
    assert resolved(model=model, norm=norm, replay_forward="separate").replay_forward == "separate"


def test_class_order_follows_the_seed_unless_given():
    assert resolved(seed=3).class_order_seed == 3
    assert resolved().class_order_seed == 0
    apart = resolved(seed=3, class_order_seed=1)
    assert (apart.seed, apart.class_order_seed) == (3, 1)


def test_options_of_others_are_not_in_the_configuration():
    config = resolved(model="sgd").values()
    assert not {"buffer_size", "minibatch_size", "kappa", "alpha", "groups", "image_size"} & set(config)
