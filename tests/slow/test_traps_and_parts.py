"""`make check-plugins`: every trap is named, and no method or norm of the project is."""

import pytest

from scripts import check_plugin
from tests.scripts.traps import TRAPS, check_traps
from utils.config.registry import MODELS, NORMS

FLAGS_OF = {"gdumb": ["--fitting_epochs", "4"], "cn": ["--groups", "2"], "gn": ["--groups", "2"]}
SHIPPED = [("--model", name) for name in MODELS.names()] + [("--norm", name) for name in NORMS.names()]


def test_every_trap_is_named(tmp_path, capsys):
    check_traps(tmp_path, list(TRAPS), capsys)


@pytest.mark.parametrize(("selector", "name"), SHIPPED, ids=lambda word: word.removeprefix("--"))
def test_nothing_is_wrong_with_what_comes_with_the_project(selector, name, capsys):
    assert check_plugin.main([selector, name, "--flags", *FLAGS_OF.get(name, [])]) == 0, capsys.readouterr().out
