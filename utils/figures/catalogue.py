"""The figures: what each shows, and how it is drawn from a selection of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utils.figures import recorded, tabled
from utils.figures.style import save
from utils.figures.theory import weights_and_kappa
from utils.studies.claims import CLAIMS, judge
from utils.studies.compare import Paired, records_by_seed
from utils.studies.plans import METHODS, ONLINE, PLANS, SETTINGS, Experiment, Plan, places
from utils.studies.results import Table, tabulate
from utils.studies.selection import Selection
from utils.studies.study import STUDIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Draw = Callable[[Selection], "Drawing | None"]  # returns None if it has no runs


@dataclass(frozen=True)
class Figure:
    id: str
    title: str
    draw: Draw
    needs: str  # the plan to run for it


def of_table(id: str, draw: Callable[[Table], Drawing | None]) -> Draw:
    return lambda selection: draw(tabulate(PLANS[id], selection))


def of_recordings(id: str, draw: Callable[..., Drawing], **arguments: Any) -> Draw:
    """Draw the finished runs of a plan that have recordings, by norm or as joint training."""

    def drawing(selection: Selection) -> Drawing | None:
        plan, folders = (PLANS | STUDIES)[id], {}
        for cell in plan.cells(selection.runs.preset):
            for run in selection.for_plan(plan).final(cell.experiment) or ():
                if selection.runs.record(run) is not None:
                    folders["joint" if cell.experiment.model == "joint" else cell.experiment.norm] = run.folder
        return draw(folders, **arguments) if folders else None

    return drawing


def after_each_task(selection: Selection) -> Drawing | None:
    curves: dict[str, dict[str, list[list[float]]]] = {}
    preset = selection.runs.preset
    for key, buffer in places(preset):
        for model in ONLINE:
            for norm in ("bn", "cn", "adab2n", *preset.also):
                records = records_by_seed(Experiment(model, norm, key, buffer), selection).values()
                for setting, title in SETTINGS.items():
                    panel = f"{title}, {METHODS[model]}, {preset.data[key].title}, M = {buffer}"
                    matrices = [record["results"][setting]["matrix"] for record in records]
                    means = [[sum(row[: i + 1]) / (i + 1) for i, row in enumerate(matrix)] for matrix in matrices]
                    curves.setdefault(panel, {})[norm] = means
    return tabled.after_each_task(curves)


def while_training(selection: Selection) -> Drawing | None:
    plan, records = STUDIES["anytime"], {}
    for cell in plan.cells(selection.runs.preset):
        for record in records_by_seed(cell.experiment, selection.for_plan(plan)).values():
            records[cell.experiment.norm] = record
    return tabled.while_training(records)


def of_claims(claims_by_title: Mapping[str, tuple[str, ...]]) -> Draw:
    """Draw a forest plot: a panel for every title, a line for every cell of its claims."""

    def drawing(selection: Selection) -> Drawing | None:
        panels: dict[str, dict[str, Paired]] = {}
        for title, claims in claims_by_title.items():
            cells = panels.setdefault(title, {})
            for id in claims:
                setting = "Task-IL" if id == "task-il" else "Class-IL"
                cells |= {f"{setting}, {name}": cell for name, cell in judge(CLAIMS[id], selection).started.items()}
        return tabled.forest(panels)

    return drawing


def forest_of(plan: Plan) -> Figure:
    """Return a forest plot of a plan of differences: a panel for every column, a line for every row."""

    def drawing(selection: Selection) -> Drawing | None:
        panels: dict[str, dict[str, Paired]] = {}
        for ((_, row), column), result in tabulate(plan, selection).results.items():
            panels.setdefault("\n".join(column), {})[row] = result.paired
        return tabled.forest(panels)

    return Figure(plan.id, plan.title, drawing, plan.id)


def compares(plan: Plan, selection: Selection) -> bool:
    return all(cell.baseline is not None for cell in plan.cells(selection.runs.preset))


def z_scores(selection: Selection) -> Drawing | None:
    ids = ("table2", "table3", "table4", "table8", "table11")
    return tabled.z_scores([tabulate(PLANS[id], selection) for id in ids])


# --- the figures: the paper's, then those that it lacks ---------------------------------------------------------------

FOREST = {"AdaB²N over BN": ("class-il", "task-il"), "AdaB²N over CN": ("above-cn",), "CN over BN": ("cn",)}
CONFOUNDS = {
    "AdaB²N over BN": ("class-il",),
    "AdaB²N over BN,\nboth joint": ("same-forward",),
    "BN, joint\nover separate": ("bn-joint",),
    "CN over BN": ("cn",),
    "CN, learned\nover frozen": ("cn-learned",),
}
_FIGURES = (
    Figure("fig1", "Training stability: loss, similarity of gradient and representation, gradient magnitude",
           of_recordings("fig1", recorded.stability), "fig1"),
    Figure("fig4", "Batch and population statistics of one norm layer",
           of_recordings("fig4", recorded.statistics_of_a_layer), "fig4"),
    Figure("fig6", "Batch statistics of all norm layers",
           of_recordings("fig6", recorded.statistics_of_all_layers, kind="batch"), "fig6"),
    Figure("fig7", "Population statistics of all norm layers",
           of_recordings("fig7", recorded.statistics_of_all_layers, kind="running"), "fig7"),
    Figure("fig2", "Gain over BN by batch size and memory size", of_table("fig2", tabled.gains), "fig2"),
    Figure("fig3", "AdaB²N by κ and λ", of_table("fig3", tabled.heat_map), "fig3"),
    Figure("fig5", "Gain over BN by buffer selection and memory size", of_table("fig5", tabled.gains), "fig5"),
    Figure("tasks", "Accuracy after each task, by norm", after_each_task, "table2"),
    Figure("anytime", "Accuracy while training", while_training, "anytime"),
    Figure("weights", "Weights of the tasks in batch and running statistics",
           of_recordings("weights", recorded.task_weights), "weights"),
    Figure("forest", "Paired gains of every cell, with 95 % intervals", of_claims(FOREST), "table2"),
    Figure("confounds", "How much of a gain in Class-IL is the norm, how much the forward and the affine?",
           of_claims(CONFOUNDS), "core"),
    Figure("z", "Distance of every cell to the published number", z_scores, "table2 --preset paper"),
    Figure("theory", "Weights of tasks in the running statistics, as it is and as printed, and what κ balances",
           lambda selection: weights_and_kappa(), ""),
)  # fmt: skip
FIGURES = {figure.id: figure for figure in _FIGURES}


def draw(figure: Figure, selection: Selection, folder: Path) -> list[Path]:
    """Write a figure in every theme and format and return the paths; none if it has no runs."""
    return save(lambda: figure.draw(selection), folder, figure.id)
