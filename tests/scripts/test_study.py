"""Studies as TOML files: from a file to a report, with a plug-in norm, killed and resumed; variants; mistakes."""

import csv
import html
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.reproduce import main as reproduce
from tests.scripts.records import finish, selection_of
from tests.scripts.sweeps import wait_for
from utils.config.parser import parse
from utils.config.resolve import resolve
from utils.errors import UsageError
from utils.figures.catalogue import curves_of, forest_of
from utils.figures.style import LIGHT, drawn_in, save
from utils.run.records import read_record
from utils.studies import render
from utils.studies.plans import PLANS
from utils.studies.presets import SMOKE
from utils.studies.request import with_also
from utils.studies.results import tabulate
from utils.studies.runs import Runs
from utils.studies.study import read_study

ROOT = Path(__file__).resolve().parents[2]
NORM = '''
from torch import nn
from utils.config.registry import NORMS

@NORMS.register("mine")
def mine(channels, *, spatial):
    """BN by another name"""
    return nn.BatchNorm1d(channels)
'''
STUDY = """
title = "Mine against others"
seeds = [0, 1]
rows = ["model", "norm"]
metrics = ["class_il_faa"]
compare = { norm = "bn" }
plugins = ["mine"]

[common]
dataset = "seq-digits"
backbone = "mlp"
hidden = 8
batch_size = 64

[vary]
model = ["er", "sgd"]
norm = ["bn", "gn", "mine"]

[[with]]
when = { norm = "gn" }
flags = { groups = 2 }
"""


@pytest.fixture
def study(tmp_path) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "norm.py").write_text(NORM)
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


def command(study: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "scripts.reproduce", *words, str(study), "--results_path", str(study.parent / "out")]


def records_of(study: Path) -> list[Path]:
    return list((study.parent / "out" / "runs").glob("*/record.json"))


def test_from_toml_to_report_killed_and_continued(study):
    where = {"env": os.environ | {"PYTHONPATH": str(ROOT)}, "cwd": study.parent}
    sweep = subprocess.Popen(command(study, "run"), **where, stderr=subprocess.DEVNULL)
    wait_for(lambda: len(records_of(study)) >= 2)
    sweep.send_signal(signal.SIGKILL)
    sweep.wait()
    before = {path: path.read_bytes() for path in records_of(study)}
    assert 2 <= len(before) < 12
    subprocess.run(command(study, "run"), **where, check=True, capture_output=True)
    assert len(records_of(study)) == 12
    assert all(path.read_bytes() == content for path, content in before.items())
    done = subprocess.run(command(study, "report"), **where, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("10 of 10 cells complete")
    values = {}
    for path in records_of(study):
        record = read_record(path)
        place = (record["config"]["model"], record["config"]["norm"])
        values.setdefault(place, {})[record["config"]["seed"]] = record["results"]["class_il"]["metrics"]["faa"]
    folder = study.parent / "out" / "reports" / "study"
    lines = list(csv.DictReader((folder / "report.csv").read_text().splitlines()))
    [mine] = [line for line in lines if (line["table"], line["row"]) == ("study", "er w/ mine")]
    assert float(mine["ours"]) == pytest.approx(sum(values["er", "mine"].values()) / 2)
    [gain] = [line for line in lines if (line["table"], line["row"]) == ("study-gains", "sgd w/ GN")]
    expected = [values["sgd", "gn"][seed] - values["sgd", "bn"][seed] for seed in (0, 1)]
    assert [float(value) for value in gain["values"].split()] == pytest.approx(expected)
    assert (folder / "figures" / "study-gains.svg").exists()


def test_values_are_those_of_flags(tmp_path):
    common = 'model = "derpp"\nlr_milestones = [3, 4]\ndebug_mode = true\ndrop_last = false'
    study = read_study(write(tmp_path, common, "lr = [0.1, 1]"))
    experiments = dict.fromkeys(cell.experiment for cell in study.plans()["other"].cells(None))
    first, second = (dict(experiment.flags) for experiment in experiments)
    assert (first["lr"], second["lr"]) == (0.1, 1.0)
    assert (first["lr_milestones"], first["debug_mode"], first["drop_last"]) == ((3, 4), True, False)
    run = Runs(study.preset()).of(next(iter(experiments)), 0)
    assert resolve(parse(run.command())) == run.config


def write(folder: Path, common: str, vary: str, rest: str = "") -> Path:
    path = folder / "other.toml"
    path.write_text(f'{rest}\n[common]\ndataset = "seq-digits"\n{common}\n[vary]\n{vary}\n')
    return path


VARIANTS = """
[[variant]]
name = "joint over separate"
flags = { replay_forward = "joint" }
baseline = { replay_forward = "separate" }

[[variant]]
name = "larger steps"
flags = { lr = 1 }
baseline = {}
"""


def test_variants_are_differences_to_their_baselines(tmp_path):
    path = write(tmp_path, "", 'model = ["er", "derpp"]')
    path.write_text(path.read_text() + VARIANTS)
    cells = list(read_study(path).plans()["other"].cells(read_study(path).preset()))
    assert len(cells) == 2 * 2 * 2  # methods, variants, metrics
    assert [cell.row for cell in cells[::2]] == [
        f"{model} w/ {name}" for model in ("er", "DER++") for name in ("joint over separate", "larger steps")
    ]
    joint, steps = cells[0], cells[2]
    assert dict(joint.experiment.flags)["replay_forward"] == "joint"
    assert dict(joint.baseline.flags)["replay_forward"] == "separate"
    assert (dict(steps.experiment.flags)["lr"], "lr" in dict(steps.baseline.flags)) == (1.0, False)


@pytest.mark.parametrize(
    ("common", "vary", "rest", "keyword"),
    [
        ('model = "er"', "seed = 1", "", "vary.seed"),
        ('model = "er"', "", "", "nothing varies"),
        ("", "lr = [1]", "", "no model"),
        ('model = "er"', 'model = ["er"]', "", "[common]"),
        ('model = "er"', "lr = [1]", 'metric = ["x"]', "metrics"),
        ('model = "er"', "lr = [1]", 'metrics = ["class_il_fa"]', "class_il_faa"),
        ('model = "er"', "lr = [1]", "seeds = [1, 1]", "seeds"),
        ('model = "er"', "lr = [1]", "compare = { lr = 2 }", "compare"),
        ('model = "er"', "lr = [1]", 'rows = ["model"]', "rows"),
        ('model = "er"', 'lr = ["x"]', "", "--lr"),
        ('model = "er"', "kappa = [1]", "", "--kappa"),
        ('model = "er"\nlearning = 1', "lr = [1]", "", "--learning"),
        ('model = "er"', "lr = [1]", 'variant = [{ name = "x" }]', "[[variant]]"),
        ('model = "er"', "lr = [1]", "with = [{ when = {} }]", "[[with]]"),
        ('model = "er"\nboundary = "none"', "lr = [1]", "", "Task-IL"),
        # two rows that are the same run, and flags that do not identify one
        ('model = "er"', "seed = [0, 1]", "", "seeds"),
        ('model = "er"\nseed = 1', "lr = [1]", "", "seeds"),
        ('model = "er"', "num_threads = [1, 2]", "", "num_threads"),
        ('model = "er"\nnum_threads = 2', "lr = [1]", "", "num_threads"),
        ('model = "er"', "lr = [0.1, 0.10]", "", "same run"),
        ('model = "er"', 'replay_forward = ["auto", "joint"]', "", "same run"),
        ('model = "er"', "lr = [1]", 'variant = [{ name = "x", flags = {}, baseline = { norm = "bn" } }]', "itself"),
        # values of another form
        ('model = "er"', "lr = [2020-01-01]", "", "lr"),
        ('model = "er"', "lr = [nan]", "", "lr"),
        ('model = "er"\nlr = { a = 1 }', "batch_size = [1]", "", "lr"),
        ("", "model = [1]", "", "model"),
        ('model = "er"', "lr = [1]", 'variant = [{ name = "x", flags = 1 }]', "flags"),
        ('model = "er"', "lr = [1]", "rows = [1]", "rows"),
        ('model = "er"', "lr = [1]", "metrics = [[1]]", "metric"),
        # too many
        ('model = "er"', f"lr = {list(range(101))}\nbuffer_size = {list(range(1, 101))}", "", "10,000"),
    ],
)
def test_mistakes_are_reported_with_the_file(tmp_path, common, vary, rest, keyword):
    path = write(tmp_path, common, vary, rest)
    with pytest.raises(UsageError) as caught:
        read_study(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert keyword in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["table2", "Report", "smoke", "core", "confirm-mnist", "index", "a b", "x{y}"])
def test_a_name_cannot_replace_another_report(tmp_path, name):
    path = write(tmp_path, 'model = "er"', "lr = [1]").rename(tmp_path / f"{name}.toml")
    with pytest.raises(UsageError, match="rename"):
        read_study(path)


ODD = r"a_b & 5% of {x} \ $y$ | *z* <i> ~"
IN_MARKDOWN = r"a\_b \& 5% of {x} \\ \$y\$ \| \*z\* \<i\> \~"
IN_LATEX = r"a\_b \& 5\% of \{x\} \textbackslash{} \$y\$ | *z* \textless{}i\textgreater{} \textasciitilde{}"


def test_titles_and_names_are_shown_letter_by_letter(tmp_path):
    path = tmp_path / "other.toml"
    variants = "".join(f"[[variant]]\nname = '{ODD} {lr}'\nflags = {{ lr = {lr} }}\n" for lr in (0.1, 0.2))
    head = f"title = '{ODD}'\nmetrics = ['class_il_faa']\ncompare = {{ variant = '{ODD} 0.1' }}\n"
    path.write_text(f'{head}{variants}[common]\nmodel = "er"\ndataset = "seq-digits"\n')
    study = read_study(path)
    chosen = selection_of(tmp_path, study.preset())
    for cell in study.plans()["other"].cells(study.preset()):
        finish(chosen.final(cell.experiment)[0], 50.0)
    table = tabulate(study.plans()["other"], chosen)
    assert render.markdown(table).count(IN_MARKDOWN) == render.latex(table).count(IN_LATEX) == 3  # title and two rows
    forest = forest_of(study.plans()["other-gains"])
    assert save(lambda: forest.draw(chosen), tmp_path, "figure", ["svg"])
    assert f"{ODD} 0.2" in html.unescape((tmp_path / "figure.svg").read_text())


def test_metrics_are_drawn_against_a_number_that_varies_from_column_to_column(tmp_path):
    path = write(tmp_path, 'model = "er"', 'lr = [0.1, 0.3]\nnorm = ["bn", "cn"]', 'rows = ["norm"]\ncolumns = ["lr"]')
    study = read_study(path)
    chosen = selection_of(tmp_path, study.preset())
    for number, cell in enumerate(study.plans()["other"].cells(study.preset())):
        finish(chosen.final(cell.experiment)[0], 50.0 + number // 2)
    with drawn_in(LIGHT):
        drawing = curves_of(study.plans()["other"]).draw(chosen)
    lines = {line.get_label(): line for line in drawing.axes[0].lines}
    assert {name: (list(line.get_xdata()), list(line.get_ydata())) for name, line in lines.items()} == {
        "BN": ([0.1, 0.3], [50.0, 51.0]), "CN": ([0.1, 0.3], [52.0, 53.0])
    }  # fmt: skip


@pytest.mark.parametrize(("content", "words"), [("[", []), ("a = " + "[" * 10_000, []), (None, []), (STUDY, ["table2"]),
                                                ("plugins = 3", [])])  # fmt: skip
def test_refused_requests_are_one_line(tmp_path, capsys, content, words):
    path = tmp_path / "x.toml"
    if content:
        path.write_text(content)
    assert reproduce(["run", str(path), *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("path", sorted((ROOT / "scripts" / "studies").glob("*.toml")), ids=lambda path: path.stem)
def test_worked_examples_can_be_run(path):
    study = read_study(path)
    assert sum(1 for plan in study.plans().values() for _ in plan.cells(study.preset())) > 4


def test_further_methods_are_rows_of_the_online_tables():
    preset = with_also(SMOKE, "gdumb,bnt")
    assert (preset.also, preset.also_models) == (("bnt",), ("gdumb",))
    rows = {cell.row for cell in PLANS["table3"].cells(preset)}
    assert {"gdumb w/ AdaB²N", "gdumb w/ bnt", "DER++ w/ bnt"} <= rows
    with pytest.raises(UsageError, match="nope"):
        with_also(SMOKE, "nope")
