"""What a run is known by: options that came later, at what runs did before, do not rename it."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers import make_spec, run_config
from utils.config.registry import MODELS, NORMS
from utils.run.identity import NUMERICS_VERSION, run_hash, run_identity, run_name

SPEC = make_spec()


@pytest.fixture(autouse=True)
def norms_of_the_test(monkeypatch):
    """Those that a test changes or adds are gone with it."""
    monkeypatch.setattr(NORMS, "_entries", dict(NORMS.entries()))


@pytest.mark.parametrize("omit_from_hash_at", [0.7, 0.2, 0])
def test_an_option_at_its_neutral_value_is_no_part_of_the_identity(omit_from_hash_at):
    """Also where the neutral value is not the default, or counts as false."""
    before, entry = run_identity(run_config("er", "adab2n"), SPEC), NORMS.get("adab2n")
    assert before["kappa"] == 0.7
    options = tuple(
        replace(option, omit_from_hash_at=omit_from_hash_at) if option.name == "kappa" else option
        for option in entry.options
    )
    NORMS.entries()["adab2n"] = replace(entry, options=options)
    del before["kappa"]
    names = set()
    for kappa in (0.7, 0.2, 0.5, 0):
        config = run_config("er", "adab2n", kappa=kappa)
        assert run_identity(config, SPEC) == (before if kappa == omit_from_hash_at else before | {"kappa": kappa})
        names.add(run_name(config, SPEC))
    assert len(names) == 4


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
    [({}, ""), ({"validation": 0.1}, "-val"), ({"validation": 0.1, "debug_mode": True}, "-val-debug")],
)
def test_a_name_says_what_gives_no_test_results(flags, words):
    name = run_name(run_config("er", **flags), SPEC)
    hash_ = run_hash(run_identity(run_config("er", **flags), SPEC))
    assert name == f"er-bn-seq-cifar10-online-m12-s0{words}-{hash_}"
