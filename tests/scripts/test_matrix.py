"""`scripts.matrix`: its help, its flags, and when it stops."""

import pytest

from scripts import matrix


@pytest.fixture
def commands(monkeypatch):
    """Those that it gives; `commands.code` is how they end."""

    class Commands(list):
        code = 1

    given = Commands()
    monkeypatch.setattr(matrix, "main", lambda words: given.append(words) or given.code)
    return given


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_runs_nothing(commands, capsys, word):
    assert matrix.matrix([word]) == 0
    assert commands == []
    assert capsys.readouterr().out.startswith("Every method with every norm on the embedded digits: `python -m scripts")


def test_flags_reach_every_run_and_failures_are_named(commands, capsys):
    assert matrix.matrix(["--debug_mode"]) == 1
    assert len(commands) == 72
    assert all(words[-1] == "--debug_mode" for words in commands)
    assert capsys.readouterr().out.startswith("failed: sgd with bn, sgd with ln, ")


@pytest.mark.parametrize("code", [2, 130, 143])
def test_bad_usage_and_signals_end_it(commands, code):
    commands.code = code
    assert matrix.matrix(["--nope"]) == code
    assert len(commands) == 1
