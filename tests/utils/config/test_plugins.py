"""`--plugins`: norms, methods, data sets and backbones of one's own in folders outside the checkout."""

import os
import sys

import pytest
from conftest import call, plugins_forgotten
from forked import refusal

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
USED = ["--model", "twice", "--norm", "scaled", "--dataset", "seq-dots"]  # the backbone follows the data set
PLAIN = ["--model", "sgd", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "8", "--debug_mode"]


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        (folder / f"{name}.py").write_text(source)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Where the user stands, with folders of plug-ins and a package that Python finds."""
    place = tmp_path.resolve() / "place"
    write(place / "mine", MINE)
    write(place / "deep/er/other", OTHER)
    write(place / "lib", {"my_package": PACKAGED})
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place / "lib")
    monkeypatch.delenv("ADAB2N_PLUGINS", raising=False)
    with plugins_forgotten():
        yield place


BOTH = ["--plugins", "mine", "deep/er/other"]


def test_every_way_of_naming_them_is_the_same_run_with_whole_paths_on_record(place, monkeypatch, run_main):
    variable = os.pathsep.join([str(place / "mine"), "", "deep/er/other"])
    folders = [str(place / "mine"), str(place / "deep/er/other")]
    ways = [
        (BOTH, "", folders),
        (["--plugins", "mine", "--seed", "0", "--plugins=./deep/er/other/"], "", folders),
        ([], variable, folders),
        ([*BOTH, "--plugins=./mine"], variable, folders),
        (["--plugins", "my_package", *BOTH[1:]], "", ["my_package", *folders]),
    ]
    records = []
    for flags, value, plugins in ways:
        monkeypatch.setenv("ADAB2N_PLUGINS", value)
        with plugins_forgotten():
            ended = run_main(*USED, *flags, "--rerun")
            assert (ended.code, ended.stderr) == (0, "")
            assert len([name for name in sys.modules if name.startswith("plugins_") and name.endswith(".common")]) == 2
        config = ended.record["config"]
        assert (config["plugins"], config["backbone"]) == (plugins, "flat")
        assert (config["first_scale"], config["width"]) == (2.5, 8)  # of both files of the same name
        assert "plugins" not in ended.record["identity"]
        records.append({what: ended.record[what] for what in ("run", "identity", "results", "steps", "data")})
    assert all(record == records[0] for record in records)
    assert records[0]["run"].startswith("twice-scaled-seq-dots-online-s0-")


def test_unused_plugins_are_the_same_run(run_main):
    plain = run_main(*PLAIN)
    assert (plain.code, plain.record["config"]["plugins"]) == (0, [])
    assert run_main(*PLAIN, *BOTH).record == plain.record  # its times too: it is not run again


def test_help_and_list_show_what_they_add():
    assert "scaled" not in call(["--list"]).stdout
    shown = call(["--help", *BOTH])
    assert (shown.code, shown.stderr) == (0, "")
    for text in ("--first_scale", "(default: 2.5)", "scaled", "twice", "seq-dots", "flat"):
        assert text in shown.stdout
    lines = [line.split(maxsplit=1) for line in call(["--list", *BOTH]).stdout.splitlines()]
    assert ["scaled", "BN that starts elsewhere"] in lines
    assert ["twice", "twice the loss of sgd"] in lines


def test_saved_network_of_a_plugin_is_evaluated_with_it(run_main):
    with plugins_forgotten():
        saved = ["--eval_only", str(run_main(*USED, *BOTH, "--save_model").folder)]
    assert "unknown model 'twice'" in refusal(call(saved))
    evaluated = call([*saved, *BOTH])
    assert (evaluated.code, evaluated.stderr) == (0, "")
    assert "norm scaled" in evaluated.stdout


# --- mistakes -------------------------------------------------------------------------------------------------

NORM = """
from backbone.norms.batch_norm import BatchNorm
from utils.config.options import Option, Rule
from utils.config.registry import NORMS

@NORMS.register("new", {keywords})
def new(channels, *, spatial):
    return BatchNorm(channels)
"""
NEW = [*PLAIN, "--norm", "new"]

MISTAKES = {  # folders with their files, the words of the command, keywords of the line
    "missing folder": ({}, ["--plugins", "./none", *PLAIN], ["{place}/none"]),
    "missing module": ({}, ["--plugins", "no_such_module", *PLAIN], ["no_such_module"]),
    "empty folder": ({"empty": {"__init__": ""}}, ["--plugins", "empty", "--help"], ["{place}/empty"]),
    "rule with a misspelt name": (
        {"rule": {"new": NORM.format(keywords='rules=(Rule({"batchsize": 3}),)')}},
        ["--plugins", "rule", *NEW],
        ["a rule of new", "did you mean batch_size"],
    ),
    "misspelt flag": ({}, [*USED, *BOTH, "--first_scal", "3"], ["did you mean --first_scale"]),
    "flag of an unused plug-in": ({}, [*PLAIN, *BOTH, "--first_scale", "3"], ["is an option of scaled"]),
    "rule with a misspelt condition": (
        {"when": {"new": NORM.format(keywords='rules=(Rule({"lr": 3}, when={"modl": "er"}),)')}},
        ["--plugins", "when", *NEW],
        ["a rule of new", "did you mean model"],
    ),
}


HALF_A_POLICY = """
from utils.config.registry import BUFFERS
from utils.data.buffer import Policy
@BUFFERS.register("half")
class Half(Policy):
    def slots(self, batch, draw): ...
"""
FAILURES = {  # the second file of a folder, keywords of the warning
    "syntax error": ("\n\ndef wrong(:\n", ["line 3", "SyntaxError"]),
    "exception": ("def f():\n    raise OSError('one\\ntwo')\n\nf()\n", ["line 2", "OSError: one two"]),
    "unknown keyword": (NORM.format(keywords="optoins=()"), ["line 6", "did you mean options"]),
    "failure after a registration": (NORM.format(keywords="") + "\n1 / 0\n", ["ZeroDivisionError"]),
    "option of the loop": (NORM.format(keywords="options=(Option('lr', str, ''),)"), ["'lr'", "rename"]),
    "flag of the parser": (NORM.format(keywords="options=(Option('seeds', str, ''),)"), ["'seeds'", "rename"]),
    "option declared twice": (NORM.format(keywords="options=(Option('a', str, ''),) * 2"), ["'a'", "twice"]),
    "option that the loop reads": (NORM.format(keywords="options=(Option('n_tasks', str, ''),)"), ["'n_tasks'"]),
    "option that a rule sets for others": (
        NORM.format(keywords="options=(Option('num_filters', str, ''),)"),
        ["'num_filters'", "a backbone and a norm"],
    ),
    "policy without a method": (HALF_A_POLICY, ["'half'", "filled"]),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_file_that_fails_is_named_and_only_missed_where_it_is_needed(place, run_main, results, failure):
    source, keywords = FAILURES[failure]
    write(place / "half", {"fine": MINE["twice"], "wrong": source})
    words = ["--plugins", "half", "--model", "twice", *PLAIN[2:]]
    refused = run_main(*words, "--norm", "new")
    warning, error = refused.stderr.splitlines()
    assert (refused.code, warning[:9], error[:26]) == (2, "warning: ", "error: unknown norm 'new'.")
    for keyword in (f"{place}/half/wrong.py", *keywords):
        assert keyword in warning
        assert keyword in error
    assert not results.exists()
    used = run_main(*words)
    assert (used.code, used.stderr) == (0, "")  # named once


def test_a_name_of_two_folders_is_refused_where_it_is_used(place, run_main):
    write(place / "one", {"new": NORM.format(keywords="")})
    write(place / "two", {"new": NORM.format(keywords="")})
    refused = run_main("--plugins", "one", "two", *NEW)
    assert refused.code == 2
    assert "registered twice" in refused.stderr.splitlines()[-1]
    assert run_main("--plugins", "one", "two", *PLAIN).code == 0


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_in_one_line(place, run_main, results, mistake):
    folders, words, keywords = MISTAKES[mistake]
    for folder, files in folders.items():
        write(place / folder, files)
    line = refusal(run_main(*words))
    for keyword in keywords:
        assert keyword.format(place=place) in line
    assert not results.exists()
