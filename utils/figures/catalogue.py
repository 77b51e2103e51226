"""The figures: what each shows, and how it is drawn from a selection of runs; and everything about one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Drawing

from utils.errors import UsageError
from utils.figures import recorded, tabled
from utils.figures.style import save
from utils.figures.theory import weights_and_kappa
from utils.run.probes import has_recording
from utils.run.records import BadRecord, read_record
from utils.studies.claims import CLAIMS
from utils.studies.compare import Paired
from utils.studies.confirm import CONFIRMATORY_SEEDS
from utils.studies.plans import PLANS, Plan
from utils.studies.results import Table, tabulate
from utils.studies.selection import Selection
from utils.studies.study import STUDIES
from utils.studies.verdicts import judge


@dataclass(frozen=True)
class Figure:
    id: str
    title: str
    draw: Callable[[Selection], Drawing | None]  # returns None if it has no runs
    needs: str  # the plan to run for it

    def write(self, selection: Selection, folder: Path) -> list[Path]:
        """Write the figure in every theme and format and return the paths; none if it has no runs."""
        return save(partial(self.draw, selection), folder, self.id)


def figure_of_table(id: str, title: str, draw: Callable[[Table], Drawing | None]) -> Figure:
    return Figure(id, title, lambda selection: draw(tabulate(PLANS[id], selection)), id)


def figure_of_runs(id: str, title: str, draw: Callable[..., Drawing | None], *, records: bool = False) -> Figure:
    """Return a figure of the finished runs of a plan, as their folders or records by norm or joint training."""

    def drawing(selection: Selection) -> Drawing | None:
        plan, runs = (PLANS | STUDIES)[id], {}
        for cell in plan.cells(selection.runs.preset):
            for run in selection.for_plan(plan).final(cell.experiment) or ():
                if (record := selection.runs.record(run)) is not None:
                    name = "joint" if cell.experiment.model == "joint" else cell.experiment.norm
                    runs[name] = record if records else run.folder
        return draw(runs) if runs else None

    return Figure(id, title, drawing, id)


def forest_of_claims(selection: Selection) -> Drawing | None:
    """Draw a line for every comparison, over all methods and by method, with a panel for every setting."""
    others = tuple(seed for seed in selection.seeds if seed not in CONFIRMATORY_SEEDS)
    panels: dict[str, dict[tuple[str, str], tabled.Differences]] = {}
    for title, ids in COMPARISONS.items():
        for panel, id in zip(COMPARED_IN, ids, strict=False):
            verdicts = [judge(CLAIMS[id], replace(selection, seeds=seeds)) for seeds in (CONFIRMATORY_SEEDS, others)]
            by_method = [{"": verdict, **verdict.by_method} for verdict in verdicts if verdict.values]
            for method in dict.fromkeys(chain(*by_method)):
                parts = [part[method] for part in by_method if method in part]
                by_seeds = {part.is_confirmatory: part.difference for part in parts}
                cells = (by_seeds.get(True, Paired()), by_seeds.get(False, Paired()), parts[0].published)
                panels.setdefault(panel, {})[title, method] = cells
    return tabled.differences(panels)


def forest_of(plan: Plan) -> Figure:
    """Return a forest plot of a plan of differences: a panel for every column, a line for every row."""
    return Figure(plan.id, plan.title, lambda runs: tabled.forest(tabulate(plan, runs).differences("\n")), plan.id)


def curves_of(plan: Plan) -> Figure:
    """Return a figure of a study's metrics against the number that it varies from column to column."""
    return Figure(plan.id, plan.title, lambda selection: tabled.curves(tabulate(plan, selection), plan.x_axis), plan.id)


# --- the figures: the paper's, then those that it lacks ---------------------------------------------------------------

COMPARED_IN = ("CIFAR, Class-IL", "CIFAR, Task-IL", "Permuted MNIST, Domain-IL")
COMPARISONS = {  # by title, the claims of these settings
    "AdaB²N − BN": ("adab2n-bn-class", "adab2n-bn-task", "permuted-mnist"),
    "BN joint − separate": ("bn-joint-class", "bn-joint-task", "mnist-joint"),
    "AdaB²N − BN, both joint": ("same-forward-class", "same-forward-task", "mnist-same-forward"),
    "AdaB²N − CN": ("adab2n-cn-class", "adab2n-cn-task"),
    "CN − BN": ("cn-bn-class", "cn-bn-task"),
}
STABILITY = "Training stability: loss, similarity of gradient and representation, gradient magnitude"
CONFOUNDED = "How much of a gain is the norm, and how much the forward pass?"
THEORY = "Weights of tasks in the running statistics, as it is and as printed, and what κ balances"
BATCH_STATISTICS = partial(recorded.statistics_of_all_layers, kind="batch")
POPULATION_STATISTICS = partial(recorded.statistics_of_all_layers, kind="running")
_FIGURES = (
    figure_of_runs("fig1", STABILITY, recorded.stability),
    figure_of_runs("fig4", "Batch and population statistics of one norm layer", recorded.statistics_of_a_layer),
    figure_of_runs("fig6", "Batch statistics of all norm layers", BATCH_STATISTICS),
    figure_of_runs("fig7", "Population statistics of all norm layers", POPULATION_STATISTICS),
    figure_of_table("fig2", "Gain over BN by batch size and memory size", tabled.gains),
    figure_of_table("fig3", "AdaB²N by κ and λ", tabled.heat_map),
    figure_of_table("fig5", "Gain over BN by buffer selection and memory size", tabled.gains),
    Figure("tasks", "Accuracy after each task, by norm", tabled.after_each_task, "table2"),
    figure_of_runs("anytime", "Accuracy while training", tabled.while_training, records=True),
    figure_of_runs("weights", "Weights of the tasks in batch and running statistics", recorded.task_weights),
    Figure("confounds", CONFOUNDED, forest_of_claims, "core"),
    Figure("published", "Final average accuracy, published and ours, cell by cell", tabled.beside_published, "table2"),
    Figure("theory", THEORY, lambda selection: weights_and_kappa(), ""),
)
FIGURES = {figure.id: figure for figure in _FIGURES}


# --- one run ----------------------------------------------------------------------------------------------------------

RECORDED: dict[str, tuple[str, Callable[..., Any]]] = {  # the probe behind each figure
    "stability": ("stability", recorded.stability),
    "statistics": ("statistics", recorded.statistics_of_a_layer),
    "batch-statistics": ("statistics", BATCH_STATISTICS),
    "population-statistics": ("statistics", POPULATION_STATISTICS),
    "weights": ("weights", recorded.task_weights),
}


def draw_run(folder: Path, output: Path) -> list[Path]:
    """Draw everything about a run and return the light PNGs; other formats and the dark theme lie beside them."""
    try:
        record = read_record(folder / "record.json")
    except BadRecord as error:
        raise UsageError(f"{folder / 'record.json'} cannot be trusted: {error}") from None
    if record is None or record["status"] != "finished":
        raise UsageError(f"{folder} holds no finished run; give a folder such as results/runs/NAME")
    name = "joint" if record["config"]["model"] == "joint" else record["config"]["norm"]
    drawings: dict[str, Callable[[], Any]] = {
        "matrix": partial(tabled.accuracy_matrix, record),
        "loss": partial(tabled.loss_curve, folder),
    }
    if record["config"].get("eval_every") and "class_il" in record["results"]:
        drawings["anytime"] = partial(tabled.while_training, {name: record})
    for figure, (probe, draw) in RECORDED.items():
        if has_recording(folder, probe, record):
            drawings[figure] = partial(draw, {name: folder})
    return [output / f"{figure}.png" for figure, draw in drawings.items() if save(draw, output, figure)]
