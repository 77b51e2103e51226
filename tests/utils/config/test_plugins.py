"""`--plugins`: norms, methods, data sets and backbones of one's own in folders outside the checkout."""

import os
from types import SimpleNamespace

import pytest
from forked import WARM, Command, forked, refusal

from utils.config.plugins import given_plugins

# Both folders have a file `common`, with different values in it.
MINE = {
    "common": "DEFAULT = 2.5",
    "scaled": '''
from torch import nn
from utils.config.options import Option, number
from utils.config.registry import NORMS
from .common import DEFAULT

@NORMS.register("scaled", options=(Option("first_scale", number(0), "where it starts", default=DEFAULT),))
def scaled(channels, *, spatial, first_scale):
    """BN that starts elsewhere"""
    layer = nn.BatchNorm1d(channels)
    nn.init.constant_(layer.weight, first_scale)
    return layer
''',
    "twice": """
from models.sgd import Sgd
from utils.config.registry import MODELS

@MODELS.register("twice", help="twice the loss of sgd")
class Twice(Sgd):
    def loss(self, batches, outputs, index):
        return {name: 2 * term for name, term in super().loss(batches, outputs, index).items()}
""",
}
OTHER = {
    "common": "DEFAULT = 8",
    "dots": """
import numpy as np
from datasets.dataset import SPLIT_OPTIONS, ClassDataset, RawData
from utils.config.options import Rule
from utils.config.registry import DATASETS

@DATASETS.register(
    "seq-dots", help="a dot on black", options=SPLIT_OPTIONS, rules=(Rule({"n_tasks": 2}),), backbone="flat"
)
class Dots(ClassDataset):
    name = "seq-dots"
    image_shape = (1, 4, 4)
    mean, std = (0.5,), (0.25,)

    def class_sizes(self, config):
        return np.full(4, 10), np.full(4, 5)

    def read(self, config):
        images, labels = np.zeros((60, 1, 16), dtype=np.uint8), np.arange(60) % 4
        images[np.arange(60), 0, labels] = 255
        images = images.reshape(60, 1, 4, 4)
        return RawData(images[:40], labels[:40], images[40:], labels[40:])
""",
    "flat": """
from backbone.mlp import MLP
from utils.config.options import Option, integer
from utils.config.registry import BACKBONES
from . import common

@BACKBONES.register("flat", help="a flat network", options=(Option("width", integer(1), "", default=common.DEFAULT),))
class Flat(MLP):
    def __init__(self, *args, width):
        super().__init__(*args, hidden=width)
""",
}
PACKAGED = """
from backbone.norms.batch_norm import BatchNorm
from utils.config.registry import NORMS

@NORMS.register("packaged", help="a norm of an installed package")
def packaged(channels, *, spatial):
    return BatchNorm(channels)
"""
QUIET = ["--device", "cpu", "--num_threads", "1", "--non_verbose"]
USED = ["--model", "twice", "--norm", "scaled", "--dataset", "seq-dots", *QUIET]  # the backbone follows the data set
PLAIN = ["--model", "sgd", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "8", "--debug_mode", *QUIET]


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        (folder / f"{name}.py").write_text(source)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where the user stands, with folders of plug-ins and a package that Python finds."""
    place = tmp_path_factory.mktemp("place").resolve()
    write(place / "mine", MINE)
    write(place / "deep/er/other", OTHER)
    write(place / "lib", {"my_package": PACKAGED})
    return place


# --- ways of naming them --------------------------------------------------------------------------------------

ENVIRONMENT = f"{{place}}/mine{os.pathsep}{os.pathsep}deep/er/other"
WAYS = {  # the flags, and the environment variable
    "several": (["--plugins", "mine", "deep/er/other"], ""),
    "repeated": (["--plugins", "mine", "--seed", "0", "--plugins", "deep/er/other"], ""),
    "equals": (["--plugins=mine", "--plugins=./deep/er/other/"], ""),
    "environment": ([], ENVIRONMENT),
    "twice": (["--plugins", "mine", "deep/er/other", "--plugins=./mine"], ENVIRONMENT),
    "module": (["--plugins", "my_package", "mine", "deep/er/other"], ""),
}


@pytest.fixture(scope="module")
def ways(place):
    """How the same run ended, named in every way, each with results of its own."""
    commands = []
    for name, (flags, variable) in WAYS.items():
        flags = [flag.format(place=place) for flag in flags]
        env = {"ADAB2N_PLUGINS": variable.format(place=place)}
        commands.append(
            Command([*USED, *flags, "--save_model", "--results_path", f"results-{name}"], cwd=place, env=env)
        )
    before = f"{WARM}; sys.path.append({str(place / 'lib')!r})"
    return dict(zip(WAYS, forked(place / "out/ways", commands, before=before), strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_naming_them_is_the_same_run_with_whole_paths_on_record(place, ways, way):
    run, first = ways[way], ways["several"]
    assert (run.code, run.stderr) == (0, "")
    folders = [str(place / "mine"), str(place / "deep/er/other")]
    named = ["my_package", *folders] if way == "module" else folders
    assert run.record["config"]["plugins"] == named
    assert "plugins" not in run.record["identity"]
    for what in ("run", "identity", "results", "steps", "data"):
        assert run.record[what] == first.record[what]
    assert run.record["run"].startswith("twice-scaled-seq-dots-online-s0-")
    assert (run.record["config"]["backbone"], run.record["steps"]) == ("flat", 4)


def test_files_of_a_folder_import_each_other_and_those_of_the_same_name_both_count(ways):
    config = ways["several"].record["config"]
    assert (config["first_scale"], config["width"]) == (2.5, 8)
    names = [module for module in ways["several"].modules if module.endswith(".common")]
    assert len(names) == 2


@pytest.mark.parametrize(
    ("words", "plugins"),
    [
        ([], []),
        (["--plugins", "a", "b", "--model", "c"], ["a", "b"]),
        (["--plugins=a", "b"], ["a"]),
        (["--plugins", "a", "--plugins", "a", "b"], ["a", "b"]),
        (["--model", "--plugins"], []),
    ],
)
def test_names_are_found_before_there_is_a_parser(monkeypatch, words, plugins):
    monkeypatch.delenv("ADAB2N_PLUGINS", raising=False)
    assert given_plugins(words) == plugins
    monkeypatch.setenv("ADAB2N_PLUGINS", os.pathsep.join(["x", "", "a"]))
    assert given_plugins(words) == ["x", "a", *(name for name in plugins if name != "a")]


# --- what they change and what not ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def around(place, ways):
    """Commands that show what is there, a run that uses nothing of it, and a saved network, in their order."""
    saved = ["--eval_only", str(place / "results-several/runs" / ways["several"].record["run"] / "model.safetensors")]
    both = ["--plugins", "mine", "deep/er/other"]
    words = {
        "help": ["--help", *both],
        "list": ["--list", *both],
        "bare_list": ["--list"],
        "plain": [*PLAIN, "--results_path", "plain"],
        "unused": [*PLAIN, "--results_path", "plain", *both],
        "saved": [*saved, *QUIET, *both],
        "saved_without": [*saved, *QUIET],
        "unknown_flag": [*USED, *both, "--first_scal", "3"],
        "foreign_flag": [*PLAIN, *both, "--first_scale", "3"],
    }
    ended = forked(place / "out/around", [Command(each, cwd=place) for each in words.values()])
    return SimpleNamespace(**dict(zip(words, ended, strict=True)))


def test_unused_plugins_are_the_same_run(around):
    assert around.plain.code == 0
    assert around.plain.record["config"]["plugins"] == []
    assert around.unused.record == around.plain.record  # its times too: it is not run again


def test_help_and_list_show_what_they_add(around):
    assert (around.help.code, around.help.stderr) == (0, "")
    for text in ("--first_scale", "(default: 2.5)", "scaled", "twice", "seq-dots", "flat"):
        assert text in around.help.stdout
    lines = [line.split(maxsplit=1) for line in around.list.stdout.splitlines() if line.startswith("  ")]
    assert ["scaled", "BN that starts elsewhere"] in lines
    assert ["twice", "twice the loss of sgd"] in lines
    assert around.bare_list.code == 0
    assert "scaled" not in around.bare_list.stdout


def test_flags_of_plugins_are_flags_as_any(around):
    assert "unknown flag --first_scal; did you mean --first_scale" in refusal(around.unknown_flag)
    assert "--first_scale is an option of scaled" in refusal(around.foreign_flag)


def test_saved_network_of_a_plugin_is_evaluated_with_it(around):
    assert (around.saved.code, around.saved.stderr) == (0, "")
    assert "norm scaled" in around.saved.stdout
    assert "unknown model 'twice'" in refusal(around.saved_without)


# --- mistakes -------------------------------------------------------------------------------------------------

NORM = """
from backbone.norms.batch_norm import BatchNorm
from utils.config.options import Rule
from utils.config.registry import DATASETS, MODELS, NORMS

@NORMS.register("new", {keywords})
def new(channels, *, spatial):
    return BatchNorm(channels)
"""
NEW = [*PLAIN, "--norm", "new"]

MISTAKES = {  # folders with their files, the words of the command, keywords of the line
    "missing folder": ({}, ["--plugins", "./none", *PLAIN], ["{place}/none"]),
    "missing module": ({}, ["--plugins", "no_such_module", *PLAIN], ["no_such_module"]),
    "empty folder": ({"empty": {"__init__": ""}}, ["--plugins", "empty", "--help"], ["{place}/empty"]),
    "syntax error": (
        {"syntax": {"fine": "", "wrong": "\n\ndef wrong(:\n"}},
        ["--plugins", "syntax", *PLAIN],
        ["{place}/syntax/wrong.py", "line 3", "SyntaxError"],
    ),
    "exception": (  # the line where it was raised, not from where that was called
        {"raises": {"wrong": "def f():\n    raise OSError('one\\ntwo')\n\nf()\n"}},
        ["--plugins", "raises", "--help"],
        ["{place}/raises/wrong.py, line 2", "OSError: one"],
    ),
    "exception in a file that another imports": (
        {"chain": {"a": "from . import b\n", "b": "\n\nimport no_such_module\n"}},
        ["--plugins", "chain", *PLAIN],
        ["{place}/chain/", "No module named 'no_such_module'"],
    ),
    "name of two folders": (
        {"one": {"new": NORM.format(keywords="")}, "two": {"new": NORM.format(keywords="")}},
        ["--plugins", "one", "two", *NEW],
        ["{place}/two/new.py, line 6", "registered twice"],
    ),
    "taken name": (
        {"taken": {"mine": NORM.replace('"new"', '"bn"').format(keywords="")}},
        ["--plugins", "taken", *PLAIN],
        ["norm 'bn' is registered twice"],
    ),
    "unknown keyword": (
        {"keyword": {"new": NORM.format(keywords="optoins=()")}},
        ["--plugins", "keyword", *NEW],
        ["{place}/keyword/new.py, line 6", "did you mean options"],
    ),
    "rule with a misspelt name": (
        {"rule": {"new": NORM.format(keywords='rules=(Rule({"batchsize": 3}),)')}},
        ["--plugins", "rule", *NEW],
        ["a rule of new", "did you mean batch_size"],
    ),
    "rule with a misspelt condition": (
        {"when": {"new": NORM.format(keywords='rules=(Rule({"lr": 3}, when={"modl": "er"}),)')}},
        ["--plugins", "when", *NEW],
        ["a rule of new", "did you mean model"],
    ),
}


@pytest.fixture(scope="module")
def mistakes(place):
    commands = []
    for folders, words, _ in MISTAKES.values():
        for folder, files in folders.items():
            write(place / folder, files)
        words = [word.format(place=place) for word in words]
        commands.append(Command([*words, "--results_path", "never"], cwd=place))
    return dict(zip(MISTAKES, forked(place / "out/mistakes", commands), strict=True))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_in_one_line(place, mistakes, mistake):
    line = refusal(mistakes[mistake])
    for words in MISTAKES[mistake][2]:
        assert words.format(place=place) in line
    assert not (place / "never").exists()
