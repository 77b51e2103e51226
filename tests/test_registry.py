"""Registries: an added file is an added part; a name registered twice is an error."""

from dataclasses import replace

import pytest

from backbone.norms.batch_norm import batch_norm
from utils.config.options import Option, Rule
from utils.config.parser import build_parser
from utils.config.registry import DATASETS, Registry, close_matches
from utils.config.resolve import resolve
from utils.errors import UsageError
from utils.run.build import StreamBuilder


def test_every_file_of_the_package_is_imported_and_registers_its_parts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_norms").mkdir()
    (tmp_path / "my_norms/__init__.py").write_text("from utils.config.registry import Registry\n"
        "MINE = Registry('norm', 'my_norms', traits=('colour',))\n")  # fmt: skip
    for name in "ab":
        (tmp_path / f"my_norms/{name}.py").write_text(f"""
from my_norms import MINE
@MINE.register("{name}", colour="red")
def build():
    '''Norm {name}.

    And more.
    '''
""")
    from my_norms import MINE

    assert MINE.names() == ["a", "b"]
    assert (MINE.get("b").help, MINE.get("b").traits, MINE.get("b").module) == (
        "Norm b.",
        {"colour": "red"},
        "my_norms.b",
    )


def test_mistakes_in_a_registration_are_reported():
    registry = Registry("norm", "backbone.norms", traits=("colour",))
    words = "registry.register('same')(batch_norm)"
    exec(words, {"__name__": "first", "registry": registry, "batch_norm": batch_norm})
    with pytest.raises(ValueError, match="'same' is registered twice: in first and in second"):
        exec(words, {"__name__": "second", "registry": registry, "batch_norm": batch_norm})
    with pytest.raises(TypeError, match=r"'color'; .*colour"):
        registry.register("name", color="red")
    for name in ("my/norm", "../norm", "my norm", ""):  # it is part of the run's folder
        with pytest.raises(ValueError, match="name"):
            registry.register(name)
    for keywords in ({"options": Option("x", str, "")}, {"rules": [Rule({"lr": 1.0})]}):  # a comma was forgotten
        with pytest.raises(TypeError, match="must be tuples"):
            registry.register("x", **keywords)


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("xyzzy", ["bn", "gn"], None),
        ("--foo", ["--lr", "--norm", "--model"], None),  # dashes are no likeness
        ("--buffer", ["--batch_size", "--buffer_size"], "--buffer_size"),
    ],
)
def test_close_matches_are_some_help_or_none(name, known, meant):
    assert close_matches(name, known) == (f"; did you mean {meant}?" if meant else ".")


def register_data_set(monkeypatch, *rules, **traits):
    """Register the digits again, with these rules; return the flag that selects them."""
    digits = DATASETS.get("seq-digits")
    monkeypatch.setitem(DATASETS.entries(), "seq-mine", replace(digits, name="seq-mine", rules=rules, traits=traits))
    return {"dataset": "seq-mine"}


def test_a_data_set_without_a_buffer_size_asks_for_one(monkeypatch):
    mine = register_data_set(monkeypatch, Rule({"n_tasks": 2}))
    with pytest.raises(UsageError, match="--buffer_size"):
        StreamBuilder(resolve({"model": "er", **mine}))
    assert StreamBuilder(resolve({"model": "er", "buffer_size": 20, **mine})).spec.n_tasks == 2


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
