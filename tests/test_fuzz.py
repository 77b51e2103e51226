"""Thousands of command lines with --dry_run: each ends with 0 or with 2 and one line, and leaves nothing behind."""

import contextlib
import io
import os
from collections import Counter

import numpy as np
import pytest
from conftest import runner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

import main
from utils.config.parser import build_parser
from utils.config.registry import MODELS, NORMS
from utils.config.resolve import SELECTORS, active_options, selected_entries

# --- what may be said -----------------------------------------------------------------------------------------

FLAGS = {
    action.option_strings[-1]: action for action in build_parser()._actions if action.option_strings[-1] != "--help"
}
# Networks of these sizes would be built; between small and impossible they only cost time.
WIDTHS = {"--num_filters", "--hidden", "--image_size"}
IMPOSSIBLE = [str(10**15), str(2**63 - 1), str(2**63), str(2**64), "1" + "0" * 400]
WRONG = [
    "", " ", "nan", "-nan", "inf", "-inf", "Infinity", "-1", "-0.0", "1e308", "1e-320", "1e400", "-1e400", "0x10",
    "1_0", "1e3", "0.5.5", "1,5", "5,1", "1,1", ",", "0,1", "none", "None", "null", "true", "auto", "-", "--", "-5",
    "--model", "--no_such_flag", "-x", "-hh", "models", "[]", "{}", "*", "%", "%s", "%(prog)s", "é", "Ω", "١٢", "１",
    "²", "\U0001f600", "\x00", "\x1b[31m", "\udcff", "a" * 300, "a" * 5000, "/dev/null", "/dev/null/x", "../..",
    "cuda:0", "cuda:-1", "cuda:99999999999999999999", "0s", "-5m", "nans", "infh", "1e308h", "s", "5 m", "derp",
    "adabn", "seq-cifar", "resnet", *IMPOSSIBLE, "9" * 4300, "9" * 5000, "-" + "9" * 400,
]  # fmt: skip
NUMERIC = ["nan", "inf", "-inf", "-1", "0", "-0.0", "1e308", "1e400", "1.5", *IMPOSSIBLE, "9" * 4300, "9" * 5000]
INTEGERS = ["1", "2", "3", "4", "5", "7", "8", "10"]
SHARES = ["0", "0.0", "0.1", "0.5", "1e-9", "0.999", "1", "1.0", "+0.25", " 0.5"]
NUMBERS = [*SHARES, "2", "1e6", "100"]
SPECIFIC = {
    "--current_share": ["1", "1/2", "0.2", "1/T"],
    "--lr_milestones": ["none", "1", "1,2", "35,45"],
    "--probe": ["none", "weights", "stability,statistics"],
    "--checkpoint_every": ["1", "300s", "5m", "0.5h"],
    "--device": ["auto", "cpu", "cuda", "cuda:3"],
    "--seed": ["0", "1", str(2**31 - 1), str(2**31)],
    "--base_path": ["IMAGES", "IMAGES", "no/where", "."],
    "--image_size": ["4", "8", "16"],
    "--eval_only": ["no/where", ".", "IMAGES/train/a/0.png"],
    "--task_classes": ["2,2,2,2,2", "5,3,2", "1,1", "10"],
    "--class_list": ["n01440764,n01443537", "9,8", "no/where", "IMAGES/train/a/0.png"],
    "--class_order": ["9,8,7,6,5,4,3,2,1,0", "0,1", "a,b", "no/where", "IMAGES/train/a/0.png"],
    "--list": ["models", "norms", "switches"],
}
TEXTS = {"--config", "--results_path", "--notes", "--wandb_project", "--wandb_entity", "--cache_path"}


def fitting(flag):
    """Return values that the flag may well take."""
    name = flag.removeprefix("--")
    if name in SELECTORS:
        return SELECTORS[name].names()
    if flag in SPECIFIC:
        return SPECIFIC[flag]
    if FLAGS[flag].choices:
        return list(FLAGS[flag].choices)
    if flag in TEXTS:
        return ["word", "two words", "a/b"]
    return INTEGERS if _takes(flag, "3") and not _takes(flag, "0.5") else NUMBERS


def _takes(flag, text):
    if FLAGS[flag].choices:
        return text in FLAGS[flag].choices
    try:
        FLAGS[flag].type(text)
    except Exception:
        return False
    return True


FITTING = {flag: fitting(flag) for flag, action in FLAGS.items() if action.nargs != 0}


def own_flags(**parts):
    """Return the flags that the chosen parts use."""
    return sorted(f"--{name}" for name in active_options(selected_entries(parts)).keys() - {"eval_only", "dry_run"})


@st.composite
def words_of(draw, flag, wrong):
    """A flag with its value, if it has one; as two words or as one."""
    if FLAGS[flag].nargs == 0:
        return [flag + draw(st.sampled_from(["", "=yes"]) if wrong else st.just(""))]
    if not wrong:
        value = draw(st.sampled_from(FITTING[flag]))
    elif _takes(flag, "3") and draw(st.booleans()):
        value = draw(st.sampled_from(NUMERIC))
    elif flag in WIDTHS:
        value = draw(st.sampled_from([word for word in WRONG if not _takes(flag, word)]))
    else:
        value = draw(st.sampled_from(WRONG) | st.text(max_size=6))
    return [f"{flag}={value}"] if draw(st.integers(0, 4)) == 0 else [flag, value]


@st.composite
def sensible(draw):
    """Known names, small networks, flags that they use; one time in two a value is of the wrong kind."""
    model, norm = draw(st.sampled_from(MODELS.names())), draw(st.sampled_from(NORMS.names()))
    dataset = draw(st.sampled_from(["seq-digits", "seq-digits", "seq-folder", "seq-cifar10", "seq-miniimg"]))
    backbone = draw(st.sampled_from(["mlp", "resnet18"] if "lider" in model else ["mlp", "mlp", "mlp", "resnet18"]))
    width = ["--hidden", "8"] if backbone == "mlp" else ["--num_filters", "4"]
    argv = ["--model", model, "--norm", norm, "--dataset", dataset, "--backbone", backbone, *width]
    if dataset == "seq-folder":
        argv += ["--base_path", "IMAGES", "--n_tasks", "2", "--image_size", "8"]
    if norm in ("gn", "cn"):
        argv += ["--groups", "4"]
    flags = own_flags(model=model, norm=norm, dataset=dataset, backbone=backbone)
    chosen = draw(st.lists(st.sampled_from(flags), min_size=1, max_size=5, unique=True))
    wrong = draw(st.sampled_from([None, chosen[0]]))
    for flag in chosen:
        argv += draw(words_of(flag, flag == wrong))
    return argv


@st.composite
def any_words(draw):
    """Flags of everybody, with values of any kind; then a word is dropped, said twice, split or put in."""
    names = ["--model", draw(st.sampled_from(MODELS.names())), "--dataset", "seq-digits", "--backbone", "mlp"]
    argv = draw(st.sampled_from([[], names, names, names]))[:]
    for flag in draw(st.lists(st.sampled_from(sorted(FLAGS)), min_size=1, max_size=3)):
        argv += draw(words_of(flag, draw(st.booleans())))
    place = draw(st.integers(0, len(argv) - 1))
    change = draw(st.sampled_from(["nothing", "drop", "twice", "split", "put in"]))
    if change == "drop":
        del argv[place]
    elif change == "twice":
        argv.insert(place, argv[place])
    elif change == "split":
        middle = draw(st.integers(0, len(argv[place])))
        argv[place : place + 1] = [argv[place][:middle], argv[place][middle:]]
    elif change == "put in":
        argv.insert(place, draw(st.sampled_from(WRONG) | st.text(max_size=6)))
    return argv


# --- what must hold -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of images for `seq-folder`."""
    root = tmp_path_factory.mktemp("images")
    for part in ("train", "test"):
        for label in "abcd":
            (root / part / label).mkdir(parents=True)
            for k in range(3):
                Image.fromarray(np.full((4, 4, 3), 50 * k, np.uint8)).save(root / part / label / f"{k}.png")
    return root


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The working directory, empty: where a stray relative path would show."""
    folder = tmp_path_factory.mktemp("here")
    with contextlib.chdir(folder):
        yield folder


def dry_run(argv, images):
    """(exit code, standard output, standard error) with streams as strict as a terminal's."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    words = ["--dry_run", *(word.replace("IMAGES", str(images)) for word in argv)]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main.main(words)
    out.flush()
    err.flush()
    return code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()


def check(argv, images, here):
    code, out, err = dry_run(argv, images)
    if code == 0:
        assert err == ""
        assert out.strip()
    else:
        assert code == 2
        assert out == ""
        assert err.startswith("error: ")
        assert err.endswith("\n")
        assert err.count("\nerror:") == 0
        if not any("\n" in word or "\r" in word for word in argv):
            assert err.count("\n") == 1
    assert "Traceback" not in out + err
    assert os.listdir(here) == []
    assert sorted(os.listdir(images)) == ["test", "train"]
    return code


def fuzz(strategy, count, images, here):
    """Return how often each exit code came up."""
    seen = Counter()

    @settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def check_command(argv):
        seen[check(argv, images, here)] += 1

    check_command()
    return seen


DIGITS = ["--model", "sgd", "--dataset", "seq-digits", "--num_filters", "4"]
MLP = ["--model", "er", "--dataset", "seq-digits", "--backbone", "mlp"]
FOLDER = ["--model", "sgd", "--dataset", "seq-folder", "--backbone", "mlp", "--n_tasks", "2"]
HUGE = "1" + "0" * 400
FORMER_TRACEBACKS = [
    [*DIGITS, "--list=models"],
    ["-hh"],
    [*DIGITS, "--batch_size", HUGE],
    [*MLP, "--buffer_size", HUGE],
    [*DIGITS, "--n_epochs", "9" * 4300],
    [*MLP, "--hidden", str(10**15)],
    [*MLP, "--hidden", str(2**63)],
    [*DIGITS[:-1], str(10**15)],
    [*DIGITS[:-1], HUGE],
    [*MLP, "--norm", "gn", "--hidden", "4", "--groups", "4"],
    [*MLP, "--norm", "cn", "--hidden", "4", "--groups", "4"],
    [*DIGITS, "--notes", "\udcff"],
    [*DIGITS, "--device=--"],
    [*FOLDER, "--base_path", "a" * 5000],
    [*FOLDER, "--base_path", "IMAGES", "--cache_path", "a" * 5000],
    [*FOLDER, "--base_path", "IMAGES", "--image_size", str(2**63)],
]


@pytest.mark.parametrize("argv", FORMER_TRACEBACKS, ids=lambda argv: " ".join(word[:20] for word in argv[-2:]))
def test_what_once_ended_in_a_traceback(argv, images, here):
    assert check(argv, images, here) in (0, 2)


@pytest.mark.parametrize("name", ["cuda:99999999999999999999", "cuda:٣", "cuda:²", "cuda:", "CPU", "mps"])
def test_device_that_cannot_be_is_one_line(results, name):
    finished = runner(results)(*MLP, "--debug_mode", "--device", name)
    assert finished.code == 2
    (line,) = finished.stderr.splitlines()
    assert line.startswith("error: ")
    assert "--device" in line
    assert not results.exists()


def test_sensible_command_lines(images, here):
    seen = fuzz(sensible(), 1000, images, here)
    assert seen[0] > 300
    assert seen[2] > 300


def test_any_words(images, here):
    seen = fuzz(any_words(), 1200, images, here)
    assert seen[0] > 20
    assert seen[2] > 600


def test_values_that_should_fit_do():
    typed = {flag: values for flag, values in FITTING.items() if FLAGS[flag].type and flag not in TEXTS}
    assert len(typed) > 40
    for flag, values in typed.items():
        assert sum(_takes(flag, value) for value in values) >= 2, flag
