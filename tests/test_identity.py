"""What a run is known by: options that came later, at what runs did before, do not rename it."""

from dataclasses import replace

import pytest

from tests.helpers import build_run, make_spec, make_stream, run_config
from utils.config.arguments import identity_options, number_options, resolve
from utils.config.parser import parse
from utils.config.registry import NORMS
from utils.run.identity import run_folder, run_hash, run_identity, run_name
from utils.run.saved_model import load_saved, save_model

SPEC = make_spec()
PLUGIN = '''
from torch import nn
from utils.config.options import Option, integer
from utils.config.registry import NORMS

OPTIONS = (
    Option("mine_size", integer(), "there from the start", default=0),
    Option("mine_shift", integer(), "came later", default=3, neutral=0),
)

@NORMS.register("mine", options=OPTIONS)
def mine(channels, *, spatial, mine_size, mine_shift):
    """BN by another name"""
    return nn.BatchNorm1d(channels)
'''


@pytest.fixture(autouse=True)
def norms_of_the_test(monkeypatch):
    """Those that a test changes or adds are gone with it."""
    monkeypatch.setattr(NORMS, "_entries", dict(NORMS.entries()))


def came_later(name: str, neutral) -> None:
    """AdaB2N's option of this name has a value that was what runs did before there was the option."""
    entry = NORMS.get("adab2n")
    options = tuple(replace(option, neutral=neutral) if option.name == name else option for option in entry.options)
    NORMS.entries()["adab2n"] = replace(entry, options=options)


def test_an_option_without_a_neutral_value_always_counts():
    for kappa in (0.7, 0.0, 1.0):
        assert run_identity(run_config("er", "adab2n", kappa=kappa), SPEC)["kappa"] == kappa


@pytest.mark.parametrize("neutral", [0.7, 0.2])
def test_an_option_at_its_neutral_value_is_no_part_of_the_identity(neutral):
    """Also where the neutral value is not the default."""
    before = run_identity(run_config("er", "adab2n"), SPEC)
    came_later("kappa", neutral)
    found = {kappa: run_identity(run_config("er", "adab2n", kappa=kappa), SPEC) for kappa in (0.7, 0.2, 0.5)}
    without = {name: value for name, value in before.items() if name != "kappa"}
    for kappa, identity in found.items():
        assert identity == (without if kappa == neutral else without | {"kappa": kappa})
    names = {run_name(run_config("er", "adab2n", kappa=kappa), SPEC) for kappa in found}
    assert len(names) == 3


@pytest.mark.parametrize(("flags", "counted"), [([], 3), (["--mine_shift", "0"], None), (["--mine_shift", "1"], 1)])
def test_an_option_of_a_plugin_may_have_come_later_too(tmp_path, flags, counted):
    (tmp_path / "mine.py").write_text(PLUGIN)
    chosen = ["--plugins", str(tmp_path), "--model", "sgd", "--norm", "mine", "--dataset", "seq-digits"]
    identity = run_identity(resolve(parse([*chosen, *flags])), SPEC)
    assert identity.get("mine_shift") == counted
    assert identity["mine_size"] == 0  # a value that counts as false is a value


def test_a_saved_network_keeps_all_that_changes_numbers(tmp_path):
    came_later("kappa", 0.7)
    config = run_config("er", "adab2n")
    _, method = build_run(config, make_stream(SPEC))
    save_model(tmp_path / "model.safetensors", method)
    kept, _ = load_saved(tmp_path / "model.safetensors")
    assert kept["config"].keys() == number_options(config).keys()
    assert kept["config"]["kappa"] == 0.7
    assert "kappa" not in identity_options(config)


@pytest.mark.parametrize(
    ("flags", "words"),
    [({}, ""), ({"validation": 0.1}, "-val"), ({"debug_mode": True}, "-debug"),
     ({"validation": 0.1, "debug_mode": True}, "-val-debug")],
)  # fmt: skip
def test_a_name_says_what_gives_no_test_results(flags, words):
    name = run_name(run_config("er", **flags), SPEC)
    hash_ = run_hash(run_identity(run_config("er", **flags), SPEC))
    assert name == f"er-bn-seq-cifar10-online-m12-s0{words}-{hash_}"


def test_a_run_from_before_names_said_so_stays_where_it_is(tmp_path):
    config = run_config("er", debug_mode=True, results_path=str(tmp_path))
    now = tmp_path / "runs" / run_name(config, SPEC)
    before = tmp_path / "runs" / now.name.replace("-debug-", "-")
    assert run_folder(config, SPEC) == now
    before.mkdir(parents=True)
    assert run_folder(config, SPEC) == before
    now.mkdir()
    assert run_folder(config, SPEC) == now
