"""Every figure there is: what it shows, and how it is drawn from a selection of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.figures import recorded, tabled
from scripts.figures.recorded import Recorded
from scripts.figures.style import THEMES, Theme, drawn_in, save
from scripts.figures.theory import weights_and_kappa
from scripts.reproduce.claims import CLAIMS, judge
from scripts.reproduce.paired import Paired
from scripts.reproduce.plans import METHODS, PLANS, SETTINGS, Experiment, Plan
from scripts.reproduce.results import tabulate
from scripts.reproduce.selection import Selection
from scripts.reproduce.studies import ONLINE, STUDIES, THREE, places

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


@dataclass(frozen=True)
class Figure:
    id: str
    title: str
    draw: Callable[[Selection, Theme], Drawing | None]  # None where no run stands behind it
    needs: str  # what to run for it


FIGURES: dict[str, Figure] = {}


def figure(id: str, title: str, needs: str):
    def register(draw):
        FIGURES[id] = Figure(id, title, draw, needs)
        return draw

    return register


# --- the paper's ------------------------------------------------------------------------------------------------------


def recorded_runs(plan: Plan, selection: Selection) -> list[Recorded]:
    """The finished runs of a plan whose recordings are there, by norm or as joint training."""
    found = {}
    for cell in plan.cells(selection.runs.preset):
        [run] = selection.for_plan(plan).final(cell.experiment) or [None]
        if run is not None and selection.runs.record(run) is not None:
            name = "joint" if cell.experiment.model == "joint" else cell.experiment.norm
            found[name] = Recorded(name, run.folder)
    return list(found.values())


def _of_recordings(id: str, draw: Callable[..., Drawing], **arguments) -> Callable[[Selection, Theme], Drawing | None]:
    def drawing(selection: Selection, theme: Theme) -> Drawing | None:
        runs = recorded_runs((PLANS | STUDIES)[id], selection)
        return draw(runs, theme, **arguments) if runs else None

    return drawing


figure("fig1", "Training stability: loss, similarity of gradient and representation, gradient magnitude", "fig1")(
    _of_recordings("fig1", recorded.stability)
)
figure("fig4", "Batch and population statistics of one norm layer", "fig4")(
    _of_recordings("fig4", recorded.statistics_of_a_layer)
)
figure("fig6", "Batch statistics of all norm layers", "fig6")(
    _of_recordings("fig6", recorded.statistics_of_all_layers, kind="batch")
)
figure("fig7", "Population statistics of all norm layers", "fig7")(
    _of_recordings("fig7", recorded.statistics_of_all_layers, kind="running")
)


@figure("fig2", "Gain over BN by batch size and memory size", "fig2")
def fig2(selection, theme):
    return tabled.gains(tabulate(PLANS["fig2"], selection), theme)


@figure("fig3", "AdaB²N by κ and λ", "fig3")
def fig3(selection, theme):
    return tabled.heat_map(tabulate(PLANS["fig3"], selection), theme)


@figure("fig5", "Gain over BN by buffer selection and memory size", "fig5")
def fig5(selection, theme):
    return tabled.gains(tabulate(PLANS["fig5"], selection), theme)


# --- what the paper lacks ---------------------------------------------------------------------------------------------


@figure("tasks", "Accuracy after each task, by norm", "table2")
def tasks(selection, theme):
    curves = {}
    for key, buffer, data in places(selection.runs.preset):
        for model in ONLINE:
            for setting, title in SETTINGS.items():
                curves[f"{title}, {METHODS[model]}, {data}"] = {
                    norm: _means_after_tasks(Experiment(model, norm, key, buffer), setting, selection)
                    for norm in (*THREE, *selection.runs.preset.also)
                }
    return tabled.after_each_task(curves, theme)


def _means_after_tasks(experiment: Experiment, setting: str, selection: Selection) -> list[list[float]]:
    records = [selection.runs.record(run) for run in selection.final(experiment) or ()]
    matrices = [record["results"][setting]["matrix"] for record in records if record]
    return [[sum(row[: i + 1]) / (i + 1) for i, row in enumerate(matrix)] for matrix in matrices]


@figure("anytime", "Accuracy while training", "anytime")
def anytime(selection, theme):
    records = {}
    for cell in STUDIES["anytime"].cells(selection.runs.preset):
        [run] = selection.for_plan(STUDIES["anytime"]).final(cell.experiment) or [None]
        if run is not None and (record := selection.runs.record(run)) is not None:
            records[cell.experiment.norm] = record
    return tabled.while_training(records, theme)


figure("weights", "Weights of the tasks in batch and running statistics", "weights")(
    _of_recordings("weights", recorded.task_weights)
)


@figure("forest", "Paired gains of every cell, with 95 % intervals", "table2")
def forest(selection, theme):
    return _forest_of_claims(
        {"AdaB²N over BN": ("class-il", "task-il"), "AdaB²N over CN": ("above-cn",), "CN over BN": ("cn",)},
        selection, theme,
    )  # fmt: skip


@figure("confounds", "How much of a gain in Class-IL is the norm, how much the forward and the affine?", "core")
def confounds(selection, theme):
    return _forest_of_claims(
        {"AdaB²N over BN": ("class-il",), "AdaB²N over BN,\nboth joint": ("same-forward",),
         "BN, joint\nover separate": ("bn-joint",), "CN over BN": ("cn",),
         "CN, learned\nover frozen": ("cn-learned",)},
        selection, theme,
    )  # fmt: skip


def _forest_of_claims(chosen: dict[str, tuple[str, ...]], selection: Selection, theme: Theme) -> Drawing | None:
    pairs: dict[str, dict[str, Paired]] = {}
    for title, claims in chosen.items():
        cells = pairs.setdefault(title, {})
        for id in claims:
            setting = "Task-IL" if id == "task-il" else "Class-IL"
            cells |= {f"{setting}, {name}": paired for name, paired in judge(CLAIMS[id], selection).started.items()}
    return tabled.forest(pairs, theme)


def forest_of(plan: Plan) -> Figure:
    """The paired differences of a plan that compares: a panel for every column, a line for every row."""

    def drawing(selection: Selection, theme: Theme) -> Drawing | None:
        table = tabulate(plan, selection)
        pairs: dict[str, dict[str, Paired]] = {}
        for ((_, row), column), result in table.results.items():
            pairs.setdefault("\n".join(column), {})[row] = Paired(tuple(result.found))
        return tabled.forest(pairs, theme)

    return Figure(plan.id, plan.title, drawing, plan.id)


def compares(plan: Plan, selection: Selection) -> bool:
    return all(cell.over is not None for cell in plan.cells(selection.runs.preset))


@figure("z", "Distance of every cell to the published number", "table2 --preset paper")
def z(selection, theme):
    ids = ("table2", "table3", "table4", "table8", "table11")
    return tabled.z_scores([tabulate(PLANS[id], selection) for id in ids], theme)


@figure("theory", "Weights of tasks in the running statistics, as it is and as printed, and what κ balances", "")
def theory(selection, theme):
    return weights_and_kappa(theme)


# --- files ------------------------------------------------------------------------------------------------------------


def draw(chosen: Figure, selection: Selection, folder: Path) -> list[Path]:
    """In every theme and format; nothing where no run stands behind it."""
    paths: list[Path] = []
    for theme in THEMES.values():
        with drawn_in(theme):
            drawing = chosen.draw(selection, theme)
            if drawing is None:
                return []
            paths += save(drawing, folder, chosen.id, theme)
    return paths
