"""Figures: what is drawn is what was measured, in every format and theme; what has no runs says so."""

from itertools import combinations, product

import numpy as np
import pytest
from conftest import runner

from scripts.figures import main as figures
from tests.scripts.records import finish, result_of, selection_of
from utils.figures import recorded, tabled
from utils.figures.catalogue import FIGURES
from utils.figures.style import DARK, LIGHT, colour_of, drawn_in, save
from utils.run.probes import read_recording
from utils.studies.compare import Paired
from utils.studies.plans import PLANS, Experiment, places
from utils.studies.presets import SMOKE
from utils.studies.results import tabulate
from utils.studies.study import STUDIES
from utils.theory import effective_weights


@pytest.fixture
def light():
    with drawn_in(LIGHT):
        yield


@pytest.fixture
def chosen(tmp_path):
    return selection_of(tmp_path, seeds=(0, 1))


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_bars_are_the_gains(chosen, light):
    for experiment in {e for cell in PLANS["fig2"].cells(SMOKE) for e in cell.comparison.experiments}:
        for seed, run in enumerate(chosen.final(experiment)):
            finish(run, {"bn": 40.0, "adab2n": 47.0}[experiment.norm] + seed, 90.0)
    drawing = tabled.gains(tabulate(PLANS["fig2"], chosen))
    panels = {axes.get_title(): axes for axes in drawing.axes}
    assert {bar.get_height() for bar in panels["Class-IL, DER++"].patches} == {7.0}
    assert {bar.get_height() for bar in panels["Task-IL, ER-ACE"].patches} == {0.0}
    labels = [text.get_text() for text in drawing.legends[0].get_texts()]
    assert labels == ["AdaB²N, B = 10", "AdaB²N, B = 32"]


def test_cells_without_runs_are_called_missing(chosen, light):
    [cell, *_] = [cell for cell in PLANS["fig3"].cells(SMOKE) if cell.row.startswith("Class-IL")]
    for run in chosen.final(cell.experiment):
        finish(run, 55.5)
    drawing = tabled.heat_map(tabulate(PLANS["fig3"], chosen))
    texts = [text.get_text() for axes in drawing.axes for text in axes.texts]
    assert (texts.count("55.5"), texts.count("missing"), texts.count("0.0")) == (1, 6, 1)


def test_forest_shows_the_interval(light):
    drawing = tabled.forest({"one over other": {"cell": Paired((1.0, 2.0, 3.0)), "none": Paired(())}})
    [axes] = drawing.axes
    spans = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 2 and line.get_linestyle() == "-"]
    assert any(np.allclose(span, Paired((1.0, 2.0, 3.0)).interval) for span in spans)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cell"]


def test_titles_of_many_panels_do_not_overlap(light):
    names = [f"boundary_strength = {k}\naverage anytime accuracy (AAA)" for k in range(10)]
    drawing = tabled.forest({name: {"gaussian w/ AdaB²N by source": Paired((1.0, 2.0, 3.0))} for name in names})
    drawing.draw_without_rendering()
    boxes = [axes.title.get_window_extent() for axes in drawing.axes]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize(("title", "norm"), [("FAA", "adab2n"), ("forgetting, lower is better", "bn")])
def test_more_forgetting_has_the_colour_of_a_loss(light, title, norm):
    figure = tabled.forest({title: {"a": Paired((1.0, 1.1, 1.2))}})
    assert figure.axes[0].lines[0].get_color() == colour_of(norm)


def test_differences_stand_beside_the_papers_in_every_setting(light):
    """The line over all methods, and one for a method; the paper's is a mark."""
    ours, exploratory = Paired((1.0, 2.0, 3.0)), Paired((-1.0, 0.0))
    lines = {("ours over BN", ""): (ours, exploratory, Paired(pooled=(6.0, 1.0, 4.0))),
             ("ours over BN", "DER++"): (ours, Paired(), None)}  # fmt: skip
    drawing = tabled.differences({"Class-IL": lines, "Task-IL": lines})
    assert [axes.get_title() for axes in drawing.axes] == ["Class-IL", "Task-IL"]
    for axes in drawing.axes:
        spans = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 2]
        assert sum(np.allclose(span, ours.interval) for span in spans) == 2
        assert [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"] == [6.0]
    assert [label.get_text() for label in drawing.axes[0].get_yticklabels()] == ["ours over BN", "DER++"]
    assert tabled.differences({}) is None


def test_curves_after_each_task_are_means_over_seeds(chosen, light):
    [(key, buffer), *_] = places(SMOKE)
    for run, matrix in zip(
        chosen.final(Experiment("derpp", "bn", key, buffer)), ([[80, 0], [70, 50]], [[90, 0], [60, 40]]), strict=True
    ):
        finish(run, 1.0, results={setting: result_of(matrix) for setting in ("class_il", "task_il")})
    drawing = tabled.after_each_task(chosen)
    assert [axes.get_title().split(",")[0] for axes in drawing.axes] == ["Task-IL", "Class-IL"]
    assert drawing.axes[0].lines[0].get_ydata().tolist() == [85.0, 55.0]


def test_smoothing_keeps_what_is_constant_and_spreads_a_peak():
    assert recorded.smoothed(np.full(50, 3.0)) == pytest.approx(3.0)
    peak = np.zeros(101)
    peak[50] = 1.0
    curve = recorded.smoothed(peak)
    assert curve.sum() == pytest.approx(1.0)
    assert curve[50] == pytest.approx(1 / (5 * np.sqrt(2 * np.pi)), rel=0.01)  # a fourth of 20 steps


# --- one run ----------------------------------------------------------------------------------------------------------

WORDS = ["--model", "derpp", "--norm", "bn", "--dataset", "seq-digits", "--num_filters", "4", "--batch_size", "40"]
WORDS += ["--replay_forward", "joint", "--eval_every", "10", "--probe", "stability,statistics,weights"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return runner(tmp_path_factory.mktemp("drawn"))(*WORDS)


def test_everything_about_a_run(run, tmp_path, capsys):
    assert figures(["run", str(run.folder), "--output", str(tmp_path)]) == 0
    names = {line.rsplit("/", 1)[1] for line in capsys.readouterr().out.splitlines()}
    assert names == {
        "matrix.png", "loss.png", "anytime.png", "stability.png", "statistics.png", "batch-statistics.png",
        "population-statistics.png", "weights.png",
    }  # fmt: skip
    for name, ending, theme in product(names, ("pdf", "svg", "png"), ("", "-dark")):
        assert (tmp_path / name.replace(".png", f"{theme}.{ending}")).stat().st_size > 1000
    text = (tmp_path / "stability.svg").read_text()
    for label in ("step", "loss", "cosine similarity", "gradient magnitude"):
        assert f">{label}<" in text


def test_measured_weights_follow_the_theorems_recursion(run):
    """Of every layer; the momentum of BN is 0.1 and a joint forward updates once a step."""
    recording = read_recording(run.folder, "weights")
    steps = len(recording["step"])
    expected = effective_weights(np.full(steps, 0.1), recording["weight"][:, :, 0])
    assert np.abs(recording["effective"][:, :, 0] - expected).max() < 1e-6


def test_the_same_run_gives_the_same_file(run, tmp_path):
    files = [save(lambda: tabled.accuracy_matrix(run.record), tmp_path / place, "matrix") for place in "ab"]
    for first, second in zip(*files, strict=True):
        assert first.read_bytes() == second.read_bytes()


# --- commands ---------------------------------------------------------------------------------------------------------


def test_figures_without_runs_say_what_to_run(tmp_path, capsys):
    assert figures(["fig1", "confounds", "--preset", "smoke", "--results_path", str(tmp_path)]) == 1
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(line[0], line[-1]) for line in words] == [("fig1:", "fig1"), ("confounds:", "core")]


@pytest.mark.parametrize("id", FIGURES)
def test_every_figure_says_what_it_needs_or_draws(id, chosen, tmp_path):
    paths = FIGURES[id].write(chosen, tmp_path / "out")
    assert bool(paths) == (id == "theory")
    assert FIGURES[id].needs in {*PLANS, *STUDIES, ""}
    if paths:
        dark = (tmp_path / "out" / "theory-dark.svg").read_text()
        assert (">as printed<" in dark, DARK.paper in dark, LIGHT.paper in dark) == (True, True, False)
