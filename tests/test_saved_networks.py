"""--save_model and --eval_only: the saved network, and what is refused in its place."""

import hashlib
import io
import pickle
import shutil
from dataclasses import replace

import pytest
import torch
from conftest import call, refuse_to_train, runner
from forked import refusal
from safetensors import torch as safetensors

from models.er import Er
from tests.datasets.image_trees import pixels, save
from tests.outcomes import change_record
from utils.config.registry import MODELS
from utils.tables import accuracy_table

TINY = ["--dataset", "seq-digits", "--num_filters", "4", "--debug_mode"]


@pytest.fixture(scope="module", params=["bn", "adab2n"])
def saved(request, tmp_path_factory):
    """(what runs there, how the run that saved its network ended, its folder)."""
    run = runner(tmp_path_factory.mktemp("saved"))
    finished = run("--model", "er", "--norm", request.param, "--save_model", "--seed", "2", *TINY)
    return run, finished, finished.folder


def test_saved_network_has_exactly_the_accuracies_of_the_last_row(saved):
    """It warns if they are others."""
    _, finished, path = saved
    evaluated = call(["--eval_only", str(path / "model.safetensors"), "--seed", "2", "--model", "er"])
    assert (evaluated.code, evaluated.stderr) == (0, "")
    for setting, result in finished.record["results"].items():
        assert accuracy_table(setting, [result["matrix"][-1]], {"debug_mode": True}) in evaluated.stdout
    assert f"norm {finished.record['config']['norm']}" in evaluated.stdout.splitlines()[0]


@pytest.mark.parametrize("flags", ["--seed 1", "--model sgd", "--num_filters 8", "--n_tasks 2", "--validation 0.1"])
def test_flag_that_contradicts_the_saved_network_is_refused(saved, flags):
    assert f"{flags} contradicts" in refusal(call(["--eval_only", str(saved[2]), *flags.split()]))


def test_saved_network_knows_where_its_data_were(tmp_path):
    photos = tmp_path / "photos"
    for part in ("train", "test"):
        for k, name in enumerate("abcd"):
            for n in range(2):  # batch normalization needs two images
                save(photos / part / name / f"{n}.png", pixels(2 * k + n, side=8))
    words = ["--model", "er", "--dataset", "seq-folder", "--base_path", str(photos), "--n_tasks", "2"]
    words += ["--image_size", "8", "--backbone", "mlp", "--save_model"]
    finished = runner(tmp_path / "results")(*words)
    assert finished.code == 0, finished.stderr
    model = str(finished.folder)
    assert call(["--eval_only", model]).code == 0
    photos.rename(tmp_path / "pictures")
    assert "--base_path" in refusal(call(["--eval_only", model]))
    assert call(["--eval_only", model, "--base_path", str(tmp_path / "pictures")]).code == 0


class Planted:
    def __reduce__(self):
        return exit, (7,)


def with_tensors(**tensors):
    """Return a change of a folder: these are saved too, or a pickle instead. The record has the digest of the file."""

    def change(folder):
        path = folder / "model.safetensors"
        content = (
            safetensors.save(safetensors.load(path.read_bytes()) | tensors) if tensors else pickle.dumps(Planted())
        )
        path.write_bytes(content)
        change_record(folder, model_sha256=hashlib.sha256(content).hexdigest())

    return change


def saved_state(value):
    content = io.BytesIO()
    torch.save(value, content)
    return torch.frombuffer(content.getbuffer(), dtype=torch.uint8)


@pytest.mark.parametrize(
    "damage",
    [
        with_tensors(),
        with_tensors(method=saved_state(Planted())),
        with_tensors(method=torch.zeros(3)),
        with_tensors(buffer=saved_state([1, 2])),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "record.json").unlink(),
        shutil.rmtree,
    ],
)
def test_network_that_is_not_what_its_record_says_is_refused(saved, tmp_path, damage):
    folder = shutil.copytree(saved[2], tmp_path / saved[2].name)
    assert call(["--eval_only", str(folder)]).code == 0
    damage(folder)
    assert str(folder) in refusal(call(["--eval_only", str(folder)]))


def test_finished_run_without_its_network_asks_for_a_rerun(run_main, monkeypatch):
    words = ["--model", "sgd", *TINY, "--save_model"]
    path = run_main(*words).folder / "model.safetensors"
    refuse_to_train(monkeypatch)
    assert run_main(*words).code == 0
    for damage in (lambda: path.write_bytes(path.read_bytes()[:-1]), path.unlink):
        damage()
        line = refusal(run_main(*words))
        assert "model.safetensors" in line
        assert "--rerun" in line


def test_saved_network_comes_with_its_buffer(saved):
    run, finished, path = saved
    evaluated = call(["--eval_only", str(path), "--eval_statistics", "buffer"])
    words = ["--model", "er", "--norm", finished.record["config"]["norm"], "--seed", "2", *TINY]
    again = run(*words, "--final_statistics", "--save_model", "--rerun").record
    for setting, result in again["results"].items():
        row = result["final_statistics"]["buffer"]
        assert accuracy_table(setting, [row], {"debug_mode": True}) in evaluated.stdout


class NearestMean(Er):
    """Assigns to the nearest class mean of the buffer, computed when a task ends and when a run is resumed."""

    means = None

    def end_task(self, task, stream):
        self.net.eval()
        with torch.no_grad():
            data = self.buffer.all_samples()
            embedding = self.net.output(self.augment.normalize(data.images)).embedding
            is_member = torch.nn.functional.one_hot(data.labels, self.n_classes).to(embedding.dtype)
            self.means = is_member.T @ embedding / is_member.sum(0).clamp(min=1)[:, None]

    def predict(self, inputs):
        return self.net(inputs) if self.means is None else -torch.cdist(self.net.output(inputs).embedding, self.means)

    def load_state_dict(self, state):
        self.end_task(0, None)


class ForgottenMean(NearestMean):
    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(("method", "is_complete"), [(NearestMean, True), (ForgottenMean, False)])
def test_saved_network_comes_with_what_predict_needs(method, is_complete, run_main, monkeypatch):
    monkeypatch.setitem(MODELS.entries(), "mean", replace(MODELS.get("er"), name="mean", build=method))
    finished = run_main("--model", "mean", "--norm", "adab2n", "--save_model", *TINY)
    evaluated = call(["--eval_only", str(finished.folder)])
    assert (evaluated.code, "warning: " in evaluated.stderr) == (0, not is_complete)
