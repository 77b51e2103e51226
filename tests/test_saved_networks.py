"""--save_model and --eval_only: the saved network, and what is refused in its place."""

import numpy as np
import pytest
import torch
from conftest import call, refuse_to_train, runner
from PIL import Image
from safetensors.torch import load_file, save_file

import utils.run.saved_model
from utils.tables import accuracy_table

TINY = ["--dataset", "seq-digits", "--num_filters", "4", "--debug_mode"]


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
