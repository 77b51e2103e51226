"""`scripts.check_plugin` names what an author forgot. tests/slow has more mistakes, and the methods of the project."""

from tests.scripts.traps import check_traps


def test_what_an_author_forgot_is_named(tmp_path, capsys):
    check_traps(tmp_path, ["lost", "memory", "hiding"], capsys)
