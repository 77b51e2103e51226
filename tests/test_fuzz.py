"""Hundreds of command lines with --dry_run: each ends with 0 or with 2 and one line, and leaves nothing behind."""

import contextlib
import os
from collections import Counter

import pytest
from conftest import call
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.datasets.image_trees import pixels, save
from utils.config.parser import build_parser
from utils.config.registry import MODELS, NORMS
from utils.config.resolve import SELECTORS, active_options, selected_entries

FLAGS = {
    action.option_strings[-1]: action for action in build_parser()._actions if action.option_strings[-1] != "--help"
}
# Networks of these sizes would be built; between small and impossible they only cost time.
WIDTHS = {"--num_filters", "--hidden", "--image_size"}
IMPOSSIBLE = [str(10**15), str(2**63), "1" + "0" * 400, "9" * 5000]
WRONG = [
    "", " ", "nan", "inf", "-inf", "-1", "-0.0", "1e308", "1e400", "0x10", "1_0", "1e3", "1,5", "5,1", "1,1", ",", "0",
    "none", "true", "auto", "-", "-5", "--model", "--no_such_flag", "-x", "-hh", "models", "[]", "%", "%s", "%(prog)s",
    "é", "١٢", "²", "\U0001f600", "\x1b[31m", "a" * 300, "a" * 5000, "/dev/null", "/dev/null/x", "../..", "cuda:0",
    "cuda:-1", "cuda:99999999999999999999", "cuda:²", "0s", "-5m", "1e308h", "5 m", "derp", "resnet", *IMPOSSIBLE,
]  # fmt: skip
FITTING = {  # values that a flag may well take
    "--current_share": ["1", "1/2", "0.2", "1/T"],
    "--lr_milestones": ["none", "1", "1,2", "35,45"],
    "--probe": ["none", "weights", "stability,statistics"],
    "--checkpoint_every": ["1", "300s", "5m", "0.5h"],
    "--device": ["auto", "cpu"],
    "--base_path": ["IMAGES", "IMAGES", "no/where", "."],
    "--image_size": ["4", "8", "16"],
    "--eval_only": ["no/where", ".", "IMAGES/train/a/0.png"],
    "--task_classes": ["2,2,2,2,2", "5,3,2", "1,1", "10"],
    "--class_list": ["n01440764,n01443537", "9,8", "no/where", "IMAGES/train/a/0.png"],
    "--class_order": ["9,8,7,6,5,4,3,2,1,0", "0,1", "a,b", "no/where", "IMAGES/train/a/0.png"],
    "--list": ["models", "norms", "switches"],
} | {f"--{name}": registry.names() for name, registry in SELECTORS.items()}
NUMBERS = ["1", "2", "4", "8", "0.1", "0.5", "1e-9"]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r"), max_size=6)


@st.composite
def words_of(draw, flag, wrong):
    """A flag with its value, if it has one; as two words or as one."""
    action = FLAGS[flag]
    if action.nargs == 0:
        return [flag + "=yes" * wrong]
    if wrong:
        value = draw(st.sampled_from(IMPOSSIBLE) if flag in WIDTHS else st.sampled_from(WRONG) | TEXT)
    else:
        value = draw(st.sampled_from(FITTING.get(flag, action.choices or NUMBERS)))
    return [f"{flag}={value}"] if draw(st.integers(0, 4)) == 0 else [flag, value]


@st.composite
def sensible(draw):
    """Known names, small networks, flags that they use; one time in two a value is of the wrong kind."""
    model, norm = draw(st.sampled_from(MODELS.names())), draw(st.sampled_from(NORMS.names()))
    dataset = draw(st.sampled_from(["seq-digits", "seq-digits", "seq-folder", "seq-cifar10", "seq-miniimg"]))
    backbone = draw(st.sampled_from(["mlp", "resnet18"] if "lider" in model else ["mlp", "mlp", "mlp", "resnet18"]))
    parts = {"model": model, "norm": norm, "dataset": dataset, "backbone": backbone}
    argv = [word for name, value in parts.items() for word in (f"--{name}", value)]
    argv += ["--hidden", "8"] if backbone == "mlp" else ["--num_filters", "4"]
    if dataset == "seq-folder":
        argv += ["--base_path", "IMAGES", "--n_tasks", "2", "--image_size", "8"]
    if norm in ("gn", "cn"):
        argv += ["--groups", "4"]
    flags = sorted(f"--{name}" for name in active_options(selected_entries(parts)).keys() - {"eval_only", "dry_run"})
    chosen = draw(st.lists(st.sampled_from(flags), min_size=1, max_size=5, unique=True))
    wrong = draw(st.sampled_from([None, chosen[0]]))
    return argv + [word for flag in chosen for word in draw(words_of(flag, flag == wrong))]


@st.composite
def any_words(draw):
    """Flags of everybody, with values of any kind; then a word is dropped, repeated or put in."""
    names = ["--model", draw(st.sampled_from(MODELS.names())), "--dataset", "seq-digits", "--backbone", "mlp"]
    argv = draw(st.sampled_from([[], names, names, names]))[:]
    for flag in draw(st.lists(st.sampled_from(sorted(FLAGS)), min_size=1, max_size=3)):
        argv += draw(words_of(flag, draw(st.booleans())))
    place = draw(st.integers(0, len(argv) - 1))
    put_in = [draw(st.sampled_from(WRONG) | TEXT), argv[place]]
    argv[place : place + 1] = draw(st.sampled_from([[argv[place]], [], [argv[place]] * 2, put_in]))
    return argv


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """`check(argv)`: the exit code of a dry run, which must have left nothing behind."""
    images, here = tmp_path_factory.mktemp("images"), tmp_path_factory.mktemp("here")
    for k, part in enumerate(f"{split}/{label}" for split in ("train", "test") for label in "abcd"):
        save(images / part / "0.png", pixels(k, side=4))

    def check(argv):
        ended = call(["--dry_run", *(word.replace("IMAGES", str(images)) for word in argv)])
        if ended.code == 0:
            assert ended.stdout.strip()
            assert ended.stderr == ""
        else:
            assert (ended.code, ended.stdout) == (2, "")
            assert ended.stderr.startswith("error: ")
            assert ended.stderr.count("\n") == 1
        assert os.listdir(here) == []
        assert sorted(os.listdir(images)) == ["test", "train"]
        return ended.code

    with contextlib.chdir(here):
        yield check


@pytest.mark.parametrize(("strategy", "least"), [(sensible, {0: 100, 2: 100}), (any_words, {0: 7, 2: 250})])
def test_command_lines_end_in_one_line_or_well(check, strategy, least):
    codes = Counter()

    @settings(
        max_examples=500,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy())
    def check_command(argv):
        codes[check(argv)] += 1

    check_command()
    assert all(codes[code] > count for code, count in least.items()), codes


DIGITS = ["--model", "sgd", "--dataset", "seq-digits", "--num_filters", "4"]
MLP = ["--model", "er", "--dataset", "seq-digits", "--backbone", "mlp"]
FOLDER = ["--model", "sgd", "--dataset", "seq-folder", "--backbone", "mlp", "--n_tasks", "2"]
FORMER_TRACEBACKS = [
    [*DIGITS, "--list=models"],
    [*DIGITS, "--device=--"],
    [*DIGITS, "--notes", "\udcff"],
    [*DIGITS, "--notes", "a\0b"],
    ["-hh"],
    [*DIGITS, "--batch_size", "1" + "0" * 400],
    [*DIGITS, "--n_epochs", "9" * 4300],
    [*MLP, "--hidden", str(10**15)],
    [*DIGITS[:-1], str(2**63)],
    [*MLP, "--norm", "gn", "--hidden", "4", "--groups", "4"],
    [*MLP, "--norm", "cn", "--hidden", "4", "--groups", "4"],
    [*FOLDER, "--base_path", "a" * 5000],
    [*FOLDER, "--base_path", "IMAGES", "--cache_path", "a" * 5000],
]


@pytest.mark.parametrize("argv", FORMER_TRACEBACKS, ids=lambda argv: " ".join(word[:20] for word in argv[-2:]))
def test_what_once_ended_in_a_traceback(check, argv):
    assert check(argv) in (0, 2)
