"""--save_model and --eval_only: the saved network, and what is refused in its place."""

import shutil

import numpy as np
import pytest
from conftest import call, refuse_to_train, runner
from PIL import Image

import utils.run.saved_model
from utils.tables import accuracy_table

TINY = ["--dataset", "seq-digits", "--num_filters", "4", "--debug_mode"]


@pytest.fixture(scope="module", params=["bn", "adab2n"])
def saved(request, tmp_path_factory):
    """(what runs there, how the run that saved its network ended, its folder)."""
    run = runner(tmp_path_factory.mktemp("saved"))
    finished = run("--model", "er", "--norm", request.param, "--save_model", "--seed", "2", *TINY)
    return run, finished, finished.folder


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
        (["--model", "sgd"], "--model sgd contradicts"),
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


def test_saved_network_knows_where_its_data_were(tmp_path):
    photos = tmp_path / "photos"
    for part in ("train", "test"):
        for k, name in enumerate(("ant", "bee", "cat", "dog")):
            (photos / part / name).mkdir(parents=True)
            for n in range(2):
                pixels = np.random.default_rng((k, n, len(part))).integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(photos / part / name / f"{n}.png")
    words = ["--model", "er", "--dataset", "seq-folder", "--base_path", str(photos), "--n_tasks", "2"]
    words += ["--image_size", "8", "--backbone", "mlp", "--save_model"]
    finished = runner(tmp_path / "results")(*words)
    assert finished.code == 0, finished.stderr
    model = str(finished.folder)
    assert call(["--eval_only", model]).code == 0
    photos.rename(tmp_path / "pictures")
    refused = call(["--eval_only", model])
    assert refused.code == 2
    assert "--base_path" in refused.stderr
    assert call(["--eval_only", model, "--base_path", str(tmp_path / "pictures")]).code == 0


def flip_a_bit(folder):
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit,
        lambda folder: (folder / "model.safetensors").write_bytes(b""),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "record.json").unlink(),
        lambda folder: (folder / "record.json").write_text("{}"),
        shutil.rmtree,
    ],
)
def test_network_that_is_not_what_its_record_says_is_refused(saved, tmp_path, damage):
    folder = shutil.copytree(saved[2], tmp_path / saved[2].name)
    assert call(["--eval_only", str(folder)]).code == 0
    damage(folder)
    refused = call(["--eval_only", str(folder)])
    assert (refused.code, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    assert str(folder) in line


def test_path_of_the_network_stands_for_its_folder(saved):
    assert call(["--eval_only", str(saved[2] / "model.safetensors")]).code == 0


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


def test_saved_network_comes_with_its_buffer(saved, monkeypatch):
    run, finished, path = saved
    measured, original = [], utils.run.saved_model.accuracies
    monkeypatch.setattr(
        utils.run.saved_model, "accuracies", lambda *args: measured.append(original(*args)) or measured[-1]
    )
    assert call(["--eval_only", str(path), "--eval_statistics", "buffer"]).code == 0
    words = ["--model", "er", "--norm", finished.record["config"]["norm"], "--seed", "2", *TINY]
    again = run(*words, "--final_statistics", "--save_model", "--rerun").record
    assert measured == [{name: result["final_statistics"]["buffer"] for name, result in again["results"].items()}]
