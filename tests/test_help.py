"""--help and --list."""

import re

import pytest
from conftest import call

from utils.config.parser import parse
from utils.config.registry import NORMS, REGISTRIES
from utils.config.resolve import SELECTORS, all_options, resolve

DIGITS = ["--dataset", "seq-digits", "--num_filters", "4"]


def flags_in(text):
    return set(re.findall(r"^  (--\w+)", text, flags=re.MULTILINE))


def test_help_has_every_group_and_flag():
    finished = call(["--help"])
    assert (finished.code, finished.stderr) == (0, "")
    assert call(["-h"]).stdout == finished.stdout
    titles, _, options = zip(*all_options(), strict=True)
    assert all(option.help[0].isupper() and option.help.endswith(".") for option in options)
    assert {"what to run", *titles} <= set(re.findall(r"^(\S.*):$", finished.stdout, flags=re.MULTILINE))
    selectors = {"--list", "--config", "--seeds", *(f"--{name}" for name in SELECTORS)}
    assert selectors | {f"--{option.name}" for option in options} == flags_in(finished.stdout)
    assert "(official: auto, paper: joint)" in " ".join(finished.stdout.split())


def test_flags_may_have_dashes_for_underscores(run_main):
    words = ["--model", "er", *DIGITS, "--buffer-size=30", "--dry-run"]
    assert run_main(*words).stdout == run_main("--model", "er", *DIGITS, "--buffer_size", "30", "--dry_run").stdout


@pytest.mark.parametrize("model", ["derpp", "sgd"])
def test_help_on_a_run_has_the_flags_that_it_uses_with_their_defaults(model):
    parts = ["--model", model, "--norm", "adab2n", "--dataset", "seq-cifar100", "--scenario", "offline"]
    finished = call([*parts, "--help"])
    assert (finished.code, finished.stderr) == (0, "")
    used = set(resolve(parse(parts)).values()) - SELECTORS.keys()
    assert flags_in(finished.stdout) == {f"--{name}" for name in used}
    helped = {word.split()[0]: word for word in " ".join(finished.stdout.split()).split(" --")}
    resolved = resolve(parse(parts)).values()
    for name in ("seed", "lr", "n_epochs", "batch_size", "lambd", "n_tasks", "num_filters"):
        assert f"default: {resolved[name]}" in helped[name], name


def test_help_on_part_of_a_run():
    model, norm = (call(["--help", *words]).stdout for words in (["--model", "derpp"], ["--norm=adab2n"]))
    assert {"--alpha", "--lr", "--buffer_size", "--results_path"} < flags_in(model)
    assert flags_in(norm) == {f"--{option.name}" for option in NORMS.get("adab2n").options}
    assert call(["--help", "--model", "nope"]).code == 2
    assert call(["--help", "--model", "derpp", "--lrr", "1"]).stdout == model  # which an error line advises


def test_list_names_everything_with_a_line():
    finished = call(["--list"])
    assert (finished.code, finished.stderr) == (0, "")
    lines = [line.split(maxsplit=1) for line in finished.stdout.splitlines() if line.startswith("  ")]
    for registry in REGISTRIES:
        for entry in registry.entries().values():
            assert [entry.name, entry.help] in lines
    only = call(["--list", "norms"]).stdout.splitlines()
    assert (only[0], len(only)) == ("norms", 1 + len(NORMS.names()))
    assert "models" in call(["--list", "colours"]).stderr
