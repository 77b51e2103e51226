"""--help and --list."""

import re

import pytest
from conftest import call

from utils.config import loop_options
from utils.config.registry import BACKBONES, DATASETS, MODELS, NORMS

DIGITS = ["--dataset", "seq-digits", "--num_filters", "4"]


def all_options():
    options = [*loop_options.RUN, *loop_options.TRAINING, *loop_options.OUTPUT, *loop_options.BUFFER]
    for registry in (MODELS, NORMS, DATASETS, BACKBONES):
        for entry in registry.entries().values():
            options += entry.options
    return options


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_has_every_group_and_flag(word):
    finished = call([word])
    assert (finished.code, finished.stderr) == (0, "")
    headings = re.findall(r"^(\S.*):$", finished.stdout, flags=re.MULTILINE)
    for title in ("what to run", "the run", "training", "output", "memory buffer and replay", "data sets", "methods",
                  "norms", "backbones"):  # fmt: skip
        assert title in headings
    flags = set(re.findall(r"^  (--\w+)", finished.stdout, flags=re.MULTILINE))
    wanted = {"--model", "--norm", "--dataset", "--backbone"} | {option.flag for option in all_options()}
    assert wanted <= flags
    assert {"--list", "--config", "--seeds"} <= flags
    assert "(official: auto, paper: joint)" in " ".join(finished.stdout.split())


def test_help_fits_a_terminal_and_leaves_names_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = call(["--help"]).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    (dataset,) = [k for k, line in enumerate(lines) if line.startswith("  --dataset ")]
    shown = " ".join(lines[dataset : dataset + 4]).replace(",", " ").split()
    assert set(DATASETS.names()) <= set(shown)
    assert not [line for line in lines if line.endswith("-")]
    monkeypatch.setenv("COLUMNS", "300")
    assert 80 < max(map(len, call(["--help"]).stdout.splitlines())) <= 110


def test_help_names_values_by_what_they_are():
    text = call(["--help"]).stdout
    for words in ("--eval_only TEXT", "--eval_every N", "--lr X", "--optim_mom X", "--checkpoint_every TIME",
                  "--results_path TEXT", "--lr_milestones EPOCHS", "--device NAME", "--probe NAME,...",
                  "--plugins FOLDER", "--scenario {online,offline}", "--arch TEXT", "--config FILE"):  # fmt: skip
        assert f"  {words} " in text.replace("\n", " \n")
    assert "VALUE" not in text


def test_flags_may_have_dashes_for_underscores(run_main):
    words = ["--model", "er", *DIGITS, "--buffer-size=30", "--dry-run"]
    assert run_main(*words).stdout == run_main("--model", "er", *DIGITS, "--buffer_size", "30", "--dry_run").stdout


def test_help_of_named_parts_has_only_their_flags():
    finished = call(["--help", "--model", "derpp", "--norm", "adab2n"])
    assert (finished.code, finished.stderr) == (0, "")
    flags = set(re.findall(r"^  (--\w+)", finished.stdout, flags=re.MULTILINE))
    own = {option.flag for entry in (MODELS.get("derpp"), NORMS.get("adab2n")) for option in entry.options}
    assert flags == own | {option.flag for option in loop_options.BUFFER}
    assert "--alpha" not in call(["--help", "--norm=adab2n"]).stdout
    assert call(["--help", "--model", "nope"]).code == 2


def test_list_names_everything_with_a_line():
    finished = call(["--list"])
    assert (finished.code, finished.stderr) == (0, "")
    lines = [line.split(maxsplit=1) for line in finished.stdout.splitlines() if line.startswith("  ")]
    for registry in (MODELS, NORMS, DATASETS, BACKBONES):
        for entry in registry.entries().values():
            assert [entry.name, entry.help] in lines
    only = call(["--list", "norms"]).stdout.splitlines()
    assert only[0] == "norms"
    assert len(only) == 1 + len(NORMS.names())
    assert "models" in call(["--list", "colours"]).stderr
