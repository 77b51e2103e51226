"""`scripts.check_plugin` names what an author forgot. tests/slow has more mistakes, and the methods of the project."""

from scripts import check_plugin
from tests.scripts.traps import check_traps


def test_what_an_author_forgot_is_named(tmp_path, capsys):
    check_traps(tmp_path, ["lost", "memory", "hiding"], capsys)


def test_nothing_to_check_and_unknown_names_are_one_line(capsys):
    for words in ([], ["--norm", "nope"], ["no_such_module"]):
        assert check_plugin.main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
