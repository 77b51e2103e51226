"""What a run is known by: options that came later, at what runs did before, do not rename it."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers import make_spec, run_config
from utils.config.parser import parse
from utils.config.registry import MODELS, NORMS
from utils.config.resolve import resolve
from utils.run.identity import NUMERICS_VERSION, run_hash, run_identity, run_name

SPEC = make_spec()
PLUGIN = '''
from torch import nn
from utils.config.options import Option, integer
from utils.config.registry import MODELS, NORMS

OPTIONS = (
    Option("mine_size", integer(), "there from the start", default=0),
    Option("mine_shift", integer(), "came later", default=3, omit_from_hash_at=0),
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


def came_later(name: str, omit_from_hash_at) -> None:
    """AdaB2N's option of this name has a value that was what runs did before there was the option."""
    entry = NORMS.get("adab2n")
    options = tuple(
        replace(option, omit_from_hash_at=omit_from_hash_at) if option.name == name else option
        for option in entry.options
    )
    NORMS.entries()["adab2n"] = replace(entry, options=options)


def test_an_option_without_a_neutral_value_always_counts():
    for kappa in (0.7, 0.0, 1.0):
        assert run_identity(run_config("er", "adab2n", kappa=kappa), SPEC)["kappa"] == kappa


@pytest.mark.parametrize("omit_from_hash_at", [0.7, 0.2])
def test_an_option_at_its_neutral_value_is_no_part_of_the_identity(omit_from_hash_at):
    """Also where the neutral value is not the default."""
    before = run_identity(run_config("er", "adab2n"), SPEC)
    came_later("kappa", omit_from_hash_at)
    found = {kappa: run_identity(run_config("er", "adab2n", kappa=kappa), SPEC) for kappa in (0.7, 0.2, 0.5)}
    without = {name: value for name, value in before.items() if name != "kappa"}
    for kappa, identity in found.items():
        assert identity == (without if kappa == omit_from_hash_at else without | {"kappa": kappa})
    names = {run_name(run_config("er", "adab2n", kappa=kappa), SPEC) for kappa in found}
    assert len(names) == 3


@pytest.mark.parametrize(("flags", "counted"), [([], 3), (["--mine_shift", "0"], None), (["--mine_shift", "1"], 1)])
def test_an_option_of_a_plugin_may_have_come_later_too(tmp_path, flags, counted):
    (tmp_path / "mine.py").write_text(PLUGIN)
    chosen = ["--plugins", str(tmp_path), "--model", "sgd", "--norm", "mine", "--dataset", "seq-digits"]
    identity = run_identity(resolve(parse([*chosen, *flags])), SPEC)
    assert identity.get("mine_shift") == counted
    assert identity["mine_size"] == 0  # a value that counts as false is a value


def test_numerics_version_of_a_norm_renames_its_runs_and_no_others():
    configs = [run_config("er", norm) for norm in ("adab2n", "bn", "cn")]
    before = [run_name(config, SPEC) for config in configs]
    assert [name for name in run_identity(configs[0], SPEC) if "numerics" in name] == ["numerics_version"]
    for version in (1, 2):
        traits = NORMS.get("adab2n").traits | {"numerics_version": version}
        NORMS.entries()["adab2n"] = replace(NORMS.get("adab2n"), traits=traits)
        renamed, *others = [run_name(config, SPEC) for config in configs]
        assert others == before[1:]
        assert renamed not in before
        before = [renamed, *others]
    assert run_identity(configs[0], SPEC)["norm_numerics_version"] == 2


GOLDEN = Path(__file__).parent / "golden"
VERSIONS = Path(__file__).parent / "golden_versions.json"  # curve: {numerics versions: SHA-256 of its file}


def numerics_versions(model: str, norm: str) -> str:
    parts = {"model": MODELS.get(model), "norm": NORMS.get(norm)}
    own = {kind: part.traits["numerics_version"] for kind, part in parts.items() if "numerics_version" in part.traits}
    return ", ".join([str(NUMERICS_VERSION), *(f"{kind} {version}" for kind, version in own.items())])


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_golden_curve_changes_only_with_a_new_numerics_version(path):
    """With a new version add a line to the file of versions; what is there for an old one never changes."""
    model, norm, *_ = path.stem.split("-")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert json.loads(VERSIONS.read_text())[path.stem][numerics_versions(model, norm)] == digest


@pytest.mark.parametrize(
    ("flags", "words"),
    [({}, ""), ({"validation": 0.1}, "-val"), ({"debug_mode": True}, "-debug"),
     ({"validation": 0.1, "debug_mode": True}, "-val-debug")],
)  # fmt: skip
def test_a_name_says_what_gives_no_test_results(flags, words):
    name = run_name(run_config("er", **flags), SPEC)
    hash_ = run_hash(run_identity(run_config("er", **flags), SPEC))
    assert name == f"er-bn-seq-cifar10-online-m12-s0{words}-{hash_}"
