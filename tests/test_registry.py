"""One file more is one thing more; a name taken twice is an error."""

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
DATASET = """
from datasets.dataset import SPLIT_OPTIONS
from datasets.seq_digits import SeqDigits
from utils.config.options import Rule
from utils.config.registry import DATASETS

@DATASETS.register("seq-inverse", help="white on black", options=SPLIT_OPTIONS, rules=(Rule({"n_tasks": 2}),))
class Inverse(SeqDigits):
    name = "seq-inverse"
"""
BACKBONE = """
from backbone.mlp import MLP
from utils.config.registry import BACKBONES

@BACKBONES.register("flat", help="a flat network")
class Flat(MLP):
    def __init__(self, *args):
        super().__init__(*args, hidden=8)
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
    (tree / "datasets/seq_inverse.py").write_text(DATASET)
    (tree / "backbone/flat.py").write_text(BACKBONE)
    listed = command(tree, "--list")
    assert listed.returncode == 0, listed.stderr
    lines = [line.split(maxsplit=1) for line in listed.stdout.splitlines() if line.startswith("  ")]
    for name, help_ in (
        ("scale_only", "multiplies every channel"),
        ("twice", "twice the loss"),
        ("seq-inverse", "white on black"),
        ("flat", "a flat network"),
    ):
        assert [name, help_] in lines
    flags = ["--model", "twice", "--norm", "scale_only", "--dataset", "seq-inverse", "--num_filters", "4"]
    ran = command(tree, *flags, "--debug_mode", "--num_threads", "1")
    assert ran.returncode == 0, ran.stderr
    assert "after task 2" in ran.stdout
    assert "after task 3" not in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("record: results/runs/twice-scale_only-seq-inverse-online-s0-")


def test_added_file_with_a_taken_name_stops_everything(tree):
    (tree / "models/again.py").write_text(MODEL.replace('"twice"', '"sgd"'))
    done = command(tree, "--list")
    assert done.returncode != 0
    assert "'sgd' is registered twice: in models.sgd and in models.again" in done.stderr
    assert done.stdout == ""


def test_duplicate_name_raises_and_names_both_modules():
    """Those that register, wherever the function itself comes from."""
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


def test_unknown_name_gets_close_matches_and_the_full_list():
    with pytest.raises(UsageError) as caught:
        NORMS.get("adabn")
    message = str(caught.value)
    assert "did you mean adab2n" in message
    assert all(name in message.split("Known: ")[1] for name in NORMS.names())


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


def test_a_default_of_nought_is_shown():
    shown = {action.dest: action.help for action in build_parser()._actions}
    assert shown["seed"].endswith("(default: 0)")
    assert shown["optim_mom"].endswith("(default: 0.0)")
    assert "default" not in shown["plugins"]
    assert "default" not in shown["rerun"]
