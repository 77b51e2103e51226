"""Registries: mistakes in a registration, and what a data set chooses by it."""

from dataclasses import replace

import pytest

from utils.config.options import Option, Rule
from utils.config.parser import build_parser
from utils.config.registry import DATASETS, Registry
from utils.config.resolve import resolve
from utils.errors import UsageError


def test_mistakes_in_a_registration_are_reported():
    registry = Registry("norm", "backbone.norms")
    for name in ("my/norm", "../norm", "my norm", ""):  # it is part of the run's folder
        with pytest.raises(ValueError, match="name"):
            registry.register(name)
    for keywords in ({"options": Option("x", str, "")}, {"rules": [Rule({"lr": 1.0})]}):  # a comma was forgotten
        with pytest.raises(TypeError, match="must be tuples"):
            registry.register("x", **keywords)


def register_data_set(monkeypatch, *rules, **traits):
    """Register the digits again, with these rules; return the flag that selects them."""
    digits = DATASETS.get("seq-digits")
    monkeypatch.setitem(DATASETS.entries(), "seq-mine", replace(digits, name="seq-mine", rules=rules, traits=traits))
    return {"dataset": "seq-mine"}


def test_a_data_set_chooses_its_backbone_where_it_is_registered_and_not_by_a_rule(monkeypatch):
    mine = register_data_set(monkeypatch, Rule({"n_tasks": 2, "backbone": "mlp"}))
    with pytest.raises(UsageError, match="seq-mine names 'backbone'"):
        resolve({"model": "sgd", **mine})
    mine = register_data_set(monkeypatch, Rule({"n_tasks": 2}), backbone="mlp")
    assert resolve({"model": "sgd", **mine}).backbone == "mlp"


def test_a_default_of_zero_is_in_the_help():
    helps = {action.dest: action.help for action in build_parser()._actions}
    assert helps["seed"].endswith("(default: 0)")
    assert "default" not in helps["rerun"]
