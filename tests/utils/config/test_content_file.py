"""`content_file`: a file counts by its content, wherever it lies."""

import pytest
from conftest import call, refuse_to_train
from forked import refusal

from models.sgd import Sgd
from utils.config.options import Option, content_file
from utils.config.registry import MODELS
from utils.config.resolve import identity_options, resolve

TINY = ["--model", "starting", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "8", "--debug_mode"]


class Starting(Sgd):
    def loss(self, batches, outputs, index):
        with open(self.config.weights) as file:
            factor = float(file.read())
        return {name: factor * term for name, term in super().loss(batches, outputs, index).items()}


@pytest.fixture(autouse=True)
def model(monkeypatch):
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS.entries()))
    options = (Option("weights", content_file, "Weights to start from."),)
    MODELS.register("starting", options=options)(Starting)


def test_another_content_is_another_run_and_another_path_the_same(tmp_path, run_main, monkeypatch):
    first, copy = tmp_path / "first.txt", tmp_path / "copy.txt"
    first.write_text("1.0")
    monkeypatch.chdir(tmp_path)
    ended = run_main(*TINY, "--weights", "first.txt", "--save_model")
    assert ended.code == 0, ended.stderr
    assert ended.record["config"]["weights"] == str(first)
    assert len(ended.record["identity"]["weights_sha256"]) == 64
    assert "weights" not in ended.record["identity"]
    first.write_text("2.0")
    other = run_main(*TINY, "--weights", "first.txt")
    assert other.folder != ended.folder
    assert other.record["results"] != ended.record["results"]
    copy.write_text("1.0")
    with monkeypatch.context() as patch:
        refuse_to_train(patch)
        assert run_main(*TINY, "--weights", str(copy)).record == ended.record
    saved = ["--eval_only", str(ended.folder)]
    assert "--weights" in refusal(call(saved))  # its path has another file now
    assert call([*saved, "--weights", str(copy)]).code == 0
    first.unlink()
    assert call([*saved, "--weights", str(copy)]).code == 0
    assert run_main("--config", str(other.folder / "record.json"), "--weights", str(copy)).folder == ended.folder


def test_a_missing_file_is_reported_in_one_line(tmp_path, run_main, results):
    (tmp_path / "run.toml").write_text('weights = "none.txt"')
    for words in (["--weights", "none.txt"], ["--config", str(tmp_path / "run.toml")]):
        line = refusal(run_main(*TINY, *words))
        assert "--weights" in line
        assert "none.txt" in line
    assert not results.exists()


def test_an_option_without_a_file_has_its_plain_name():
    config = resolve({"model": "starting", "dataset": "seq-digits"})
    assert identity_options(config)["weights"] is None
