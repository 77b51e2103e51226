"""--help and --list."""

import re

from conftest import call

from utils.config import loop_options
from utils.config.registry import MODELS, NORMS, REGISTRIES
from utils.config.resolve import all_options

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
    selectors = {"--model", "--norm", "--dataset", "--backbone", "--list", "--config", "--seeds"}
    assert selectors | {f"--{option.name}" for option in options} == flags_in(finished.stdout)
    assert "(official: auto, paper: joint)" in " ".join(finished.stdout.split())


def test_flags_may_have_dashes_for_underscores(run_main):
    words = ["--model", "er", *DIGITS, "--buffer-size=30", "--dry-run"]
    assert run_main(*words).stdout == run_main("--model", "er", *DIGITS, "--buffer_size", "30", "--dry_run").stdout


def test_help_of_named_parts_has_only_their_flags():
    finished = call(["--help", "--model", "derpp", "--norm", "adab2n"])
    assert (finished.code, finished.stderr) == (0, "")
    own = {f"--{option.name}" for entry in (MODELS.get("derpp"), NORMS.get("adab2n")) for option in entry.options}
    assert flags_in(finished.stdout) == own | {f"--{option.name}" for option in loop_options.BUFFER}
    assert "--alpha" not in call(["--help", "--norm=adab2n"]).stdout
    assert call(["--help", "--model", "nope"]).code == 2


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
