"""Registries: an added file is an added part; a name registered twice is an error."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from backbone.norms.batch_norm import batch_norm
from utils.config.options import Option, Rule
from utils.config.parser import build_parser
from utils.config.registry import DATASETS, NORMS, Entry, Registry, close_matches
from utils.config.resolve import resolve
from utils.errors import UsageError
from utils.run.build import StreamBuilder

ROOT = Path(__file__).resolve().parent.parent

NORM = '''
from torch import nn
from utils.config.options import Option, number
from utils.config.registry import NORMS

@NORMS.register("scale_only", options=(Option("first_scale", number(0), "where it starts", default=2.0),))
def scale_only(channels, *, spatial, first_scale):
    """multiplies every channel"""
    layer = nn.BatchNorm2d(channels)
    nn.init.constant_(layer.weight, first_scale)
    return layer
'''
MODEL = """
from models.sgd import Sgd
from utils.config.registry import MODELS

@MODELS.register("twice", help="twice the loss")
class Twice(Sgd):
    def loss(self, batches, outputs, index):
        return {name: 2 * term for name, term in super().loss(batches, outputs, index).items()}
"""


@pytest.fixture
def tree(tmp_path):
    """A copy of the code, to which files can be added."""
    for folder in ("backbone", "models", "datasets", "utils"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "main.py", tmp_path)
    return tmp_path


def command(tree, *words):
    return subprocess.run([sys.executable, "main.py", *words], cwd=tree, capture_output=True, text=True)


def test_added_files_are_listed_and_run(tree):
    (tree / "backbone/norms/scale_only.py").write_text(NORM)
    (tree / "models/twice.py").write_text(MODEL)
    listed = command(tree, "--list")
    assert listed.returncode == 0, listed.stderr
    lines = [line.split(maxsplit=1) for line in listed.stdout.splitlines() if line.startswith("  ")]
    assert ["scale_only", "multiplies every channel"] in lines
    assert ["twice", "twice the loss"] in lines
    flags = ["--model", "twice", "--norm", "scale_only", "--dataset", "seq-digits", "--num_filters", "4"]
    ran = command(tree, *flags, "--debug_mode", "--num_threads", "1")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1].startswith("record: results/runs/twice-scale_only-seq-digits-online-s0-")


def test_duplicate_name_raises_and_names_both_modules():
    registry = Registry("norm", "backbone.norms")
    words = "registry.register('same')(batch_norm)"
    exec(words, {"__name__": "first", "registry": registry, "batch_norm": batch_norm})
    with pytest.raises(ValueError, match="norm 'same' is registered twice: in first and in second"):
        exec(words, {"__name__": "second", "registry": registry, "batch_norm": batch_norm})


def test_help_line_falls_back_to_the_docstrings_first_line():
    def build():
        """First line.

        And more.
        """

    registry = Registry("model", "models", traits=("colour",))
    registry.register("name", colour="red")(build)
    assert registry._entries["name"].help == "First line."
    assert registry._entries["name"].traits == {"colour": "red"}


def test_keyword_that_the_kind_does_not_know_is_refused():
    registry = Registry("model", "models", traits=("colour",))
    with pytest.raises(TypeError, match=r"unknown keyword 'color'; .*colour"):
        registry.register("name", color="red")
    assert registry._entries == {}


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("xyzzy", ["bn", "gn"], None),
        ("xn", ["bn", "gn", "in"], None),  # all are as close, and none is any help
        ("--foo", ["--lr", "--norm", "--model"], None),  # dashes are no likeness
        ("--buffer", ["--batch_size", "--buffer_size"], "--buffer_size"),
        ("sdg", ["sgd", "er"], "sgd"),
    ],
)
def test_close_matches_are_some_help_or_none(name, known, meant):
    assert close_matches(name, known) == (f"; did you mean {meant}?" if meant else ".")


@pytest.mark.parametrize("given", [{"options": Option("x", str, "")}, {"rules": [Rule({"lr": 1.0})]}])
def test_options_and_rules_are_tuples(given):
    """A forgotten comma would break every command."""
    with pytest.raises(TypeError, match="must be tuples"):
        Registry("norm", "backbone.norms").register("x", **given)


def test_owners_of_different_kinds_may_share_a_flag(monkeypatch):
    norm = Entry("mine", lambda channels: None, "", options=(Option("alpha", str, "of a norm", default="a"),))
    monkeypatch.setitem(NORMS.entries(), "mine", norm)
    (line,) = [action.help for action in build_parser()._actions if action.dest == "alpha"]
    assert "mine" in line
    assert "derpp" in line
    assert resolve({"model": "sgd", "norm": "mine", "dataset": "seq-digits"}).alpha == "a"


def data_set(monkeypatch, *rules, **traits):
    """The digits again, with these rules."""
    digits = DATASETS.get("seq-digits")
    monkeypatch.setitem(DATASETS.entries(), "seq-mine", replace(digits, name="seq-mine", rules=rules, traits=traits))
    return {"dataset": "seq-mine"}


def test_a_data_set_without_a_buffer_size_asks_for_one(monkeypatch):
    mine = data_set(monkeypatch, Rule({"n_tasks": 2}))
    with pytest.raises(UsageError, match="--buffer_size"):
        StreamBuilder(resolve({"model": "er", **mine}))
    assert StreamBuilder(resolve({"model": "er", "buffer_size": 20, **mine})).spec.n_tasks == 2


def test_a_data_set_chooses_its_backbone_where_it_is_registered_and_not_by_a_rule(monkeypatch):
    mine = data_set(monkeypatch, Rule({"n_tasks": 2, "backbone": "mlp"}))
    with pytest.raises(UsageError, match="seq-mine names 'backbone'"):
        resolve({"model": "sgd", **mine})
    assert resolve({"model": "sgd", **data_set(monkeypatch, Rule({"n_tasks": 2}), backbone="mlp")}).backbone == "mlp"


def test_a_default_of_zero_is_in_the_help():
    help_ = {action.dest: action.help for action in build_parser()._actions}
    assert help_["seed"].endswith("(default: 0)")
    assert help_["optim_mom"].endswith("(default: 0.0)")
    assert "default" not in help_["plugins"]
    assert "default" not in help_["rerun"]
