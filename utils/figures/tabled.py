"""Figures of finished runs: gains (Figs. 2 and 5), κ and λ (Fig. 3), forest plots, z, accuracies over a run."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from utils.config.resolve import Config
from utils.figures.style import COLUMN, PAGE, Theme, colour_of, label_of
from utils.run.training import steps_per_task
from utils.studies.compare import Paired
from utils.studies.results import NOTABLE, Result, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

HATCHES = ("", "////")


# --- Figures 2 and 5 --------------------------------------------------------------------------------------------------


def gains(table: Table, theme: Theme) -> Drawing | None:
    """Bars of gains over BN: a panel for every setting and method, colours for norms, hatches for what varies."""
    from matplotlib import pyplot

    if not any(result.n for result in table.results.values()):
        return None
    panels = list(dict.fromkeys(column[:2] for column in table.columns))
    rows = [row for row in table.rows if any(table.results[row, column].n for column in table.columns)]
    figure, grid = pyplot.subplots(2, 2, figsize=(PAGE, 4.0), sharex=True, sharey="row")
    for axes, panel in zip(grid.flat, panels, strict=True):
        bars = [column for column in table.columns if column[:2] == panel]
        variants = list(dict.fromkeys(column[2].rpartition(", ")[0] for column in bars))
        width = 0.8 / len(bars)
        for number, column in enumerate(bars):
            variant, _, _ = column[2].rpartition(", ")
            norm = next(cell.cell.experiment.norm for (_, at), cell in table.results.items() if at == column)
            shown = [table.results[row, column] for row in rows]
            places = np.arange(len(rows)) + (number - (len(bars) - 1) / 2) * width
            axes.bar(
                places, [result.mean or 0 for result in shown], width, color=colour_of(norm),
                yerr=[result.std or 0 for result in shown], hatch=HATCHES[variants.index(variant)],
                edgecolor=theme.paper, linewidth=0.5, error_kw={"ecolor": theme.ink, "elinewidth": 0.6},
                label=f"{label_of(norm)}, {variant}",
            )  # fmt: skip
            for place, result in zip(places, shown, strict=True):
                if not result.n:
                    axes.text(place, 0, "missing", rotation=90, ha="center", va="bottom", fontsize=5, color=theme.ink)
        axes.axhline(0, color=theme.ink, linewidth=0.6)
        axes.set_title(", ".join(panel))
    for axes in grid[:, 0]:
        axes.set_ylabel("gain over BN, points")
    for axes in grid[1]:
        axes.set_xticks(
            range(len(rows)), [row[1].replace(", M", "\nM").replace("Split ", "") for row in rows], fontsize=6
        )
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(handles))
    return figure


# --- Figure 3 ---------------------------------------------------------------------------------------------------------


def heat_map(table: Table, theme: Theme) -> Drawing | None:
    """Accuracy for every κ (down) and λ (across), a panel for each setting; a cell without runs stays empty."""
    from matplotlib import pyplot

    if not any(result.n for result in table.results.values()):
        return None
    settings = list(dict.fromkeys(row[1].partition(", ")[0] for row in table.rows))
    figure, panels = pyplot.subplots(1, len(settings), figsize=(PAGE, 2.6))
    for axes, setting in zip(np.atleast_1d(panels), settings, strict=True):
        rows = [row for row in table.rows if row[1].startswith(f"{setting}, ")]
        values = np.array([[_mean(table.results[row, column]) for column in table.columns] for row in rows])
        image = axes.imshow(values, cmap="cividis", aspect="auto")
        axes.grid(False)
        for (i, j), value in np.ndenumerate(values):
            text = "missing" if np.isnan(value) else f"{value:.1f}"
            dark = np.isnan(value) or value < np.nanmean(values)
            axes.text(j, i, text, ha="center", va="center", fontsize=7, color=theme.ink if np.isnan(value) else
                      ("#ffffff" if dark else "#000000"))  # fmt: skip
        axes.set_xticks(range(len(table.columns)), [column[-1] for column in table.columns])
        axes.set_yticks(range(len(rows)), [row[1].partition(", ")[2] for row in rows])
        axes.set_title(f"{setting}, {table.columns[0][0]}")
        figure.colorbar(image, ax=axes, label="final average accuracy, %")
    return figure


def _mean(result: Result) -> float:
    return np.nan if result.mean is None else result.mean


# --- forest plot and z ------------------------------------------------------------------------------------------------


def forest(pairs: dict[str, dict[str, Paired]], theme: Theme) -> Drawing | None:
    """Paired differences with their intervals: a panel for every comparison, a line for every cell."""
    from matplotlib import pyplot

    pairs = {title: {n: p for n, p in cells.items() if p.n} for title, cells in pairs.items()}
    pairs = {title: cells for title, cells in pairs.items() if cells}
    if not pairs:
        return None
    names = list(dict.fromkeys(name for cells in pairs.values() for name in cells))
    figure, row = pyplot.subplots(
        1, len(pairs), figsize=(PAGE, 0.9 + 0.17 * len(names)), sharex=True, sharey=True, squeeze=False
    )
    for axes, (title, cells) in zip(row[0], pairs.items(), strict=True):
        for name, paired in cells.items():
            place = names.index(name)
            colour = colour_of("adab2n") if paired.is_above else colour_of("bn") if paired.is_below else theme.ink
            if paired.interval is not None:
                axes.plot(paired.interval, [place, place], color=colour, linewidth=1)
            axes.plot(paired.differences, [place] * paired.n, "|", color=colour, markersize=4, alpha=0.6)
            axes.plot(paired.mean, place, "o", color=colour, markersize=3.5)
        axes.axvline(0, color=theme.ink, linewidth=0.6)
        axes.set_title(title)
        axes.locator_params(axis="x", nbins=4)
    figure.supxlabel("points, 95 % interval", fontsize="medium")  # once: under narrow panels they would meet
    row[0][0].set_yticks(range(len(names)), names)
    row[0][0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def z_scores(tables: list[Table], theme: Theme) -> Drawing | None:
    """How far every cell is from the published one, in standard errors; only where that can be compared."""
    from matplotlib import pyplot

    cells = [(table.id, result) for table in tables if table.preset.comparable for result in table.results.values()]
    cells = [(id, result) for id, result in cells if result.z is not None]
    if not cells:
        return None
    figure, axes = pyplot.subplots(figsize=(PAGE, 2.6))
    axes.axhspan(-NOTABLE, NOTABLE, color=theme.faint, alpha=0.3, linewidth=0, label=f"|z| up to {NOTABLE:g}")
    start, middles = 0, {}
    for id, members in groupby(cells, key=lambda pair: pair[0]):
        z = np.array([result.z for _, result in members])
        far = np.abs(z) > NOTABLE
        places = start + np.arange(len(z))
        axes.scatter(places[~far], z[~far], s=8, color=colour_of("adab2n"), zorder=2)
        axes.scatter(places[far], z[far], s=12, marker="^", color=colour_of("bn"), zorder=2)
        middles[id.replace("table", "Table ")] = places.mean()
        start += len(z) + 6
    axes.set(ylabel="z against the paper", xlabel="cells, table by table")
    axes.set_xticks(list(middles.values()), list(middles))
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.legend()
    return figure


# --- accuracy over a run ----------------------------------------------------------------------------------------------


def after_each_task(curves: dict[str, dict[str, list[list[float]]]], theme: Theme) -> Drawing | None:
    """Mean accuracy on the tasks seen after each task: a panel for every place, a line for every norm with a band from
    its lowest to its highest seed. `curves[panel][norm]` has a row for every seed."""
    from matplotlib import pyplot

    curves = {panel: {norm: rows for norm, rows in norms.items() if rows} for panel, norms in curves.items()}
    curves = {panel: norms for panel, norms in curves.items() if norms}
    if not curves:
        return None
    across = min(2, len(curves))
    figure, grid = pyplot.subplots(
        -(-len(curves) // across), across, figsize=(PAGE, 2.2 * -(-len(curves) // across)), squeeze=False
    )
    for axes, (panel, norms) in zip(grid.flat, curves.items(), strict=False):
        for norm, rows in norms.items():
            values, tasks = np.array(rows), np.arange(1, len(rows[0]) + 1)
            axes.plot(tasks, values.mean(0), "o-", markersize=2.5, color=colour_of(norm),
                      label=f"{label_of(norm)} (n = {len(rows)})")  # fmt: skip
            axes.fill_between(tasks, values.min(0), values.max(0), color=colour_of(norm), alpha=0.15, linewidth=0)
        axes.set(title=panel, xlabel="tasks trained", ylabel="accuracy, %")
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in list(grid.flat)[len(curves) :]:
        axes.set_axis_off()
    grid.flat[0].legend()
    return figure


def while_training(records: dict[str, dict], theme: Theme, setting: str = "class_il") -> Drawing | None:
    """Mean accuracy on the tasks seen so far, at every point of `--eval_every` and the ends of tasks."""
    from matplotlib import pyplot

    if not records:
        return None
    figure, axes = pyplot.subplots(figsize=(COLUMN, 2.3))
    for norm, record in records.items():
        result = record["results"][setting]
        points = [(point["step"], float(np.mean(point["accuracy"]))) for point in result["points"]]
        ends = zip(ends_of_tasks(record), result["matrix"], strict=True)
        points += [(step, float(np.mean(row[: i + 1]))) for i, (step, row) in enumerate(ends)]
        steps, values = zip(*sorted(points), strict=True)
        axes.plot(steps, values, color=colour_of(norm), label=label_of(norm))
    for step in ends_of_tasks(next(iter(records.values())))[:-1]:
        axes.axvline(step, color=theme.faint, linewidth=0.5, zorder=0)
    axes.set(xlabel="step", ylabel="accuracy on the tasks seen, %")
    axes.legend()
    return figure


def ends_of_tasks(record: dict) -> list[int]:
    """The steps after which tasks ended."""
    config = Config(**record["config"])
    return np.cumsum([steps_per_task(config, size) for size in record["data"]["train_sizes"]]).tolist()


def accuracy_matrix(record: dict, theme: Theme) -> Drawing | None:
    """Accuracy on every task after every task."""
    from matplotlib import pyplot

    from utils.tables import TITLES

    results = record["results"]
    figure, panels = pyplot.subplots(
        1, len(results), figsize=(PAGE if len(results) > 1 else COLUMN, 2.8), squeeze=False
    )
    for axes, (setting, result) in zip(panels[0], results.items(), strict=True):
        matrix = np.array([[np.nan if value is None else value for value in row] for row in result["matrix"]], float)
        image = axes.imshow(matrix, cmap="cividis", vmin=0, vmax=100)
        axes.grid(False)
        if matrix.shape[1] <= 10:
            for (i, j), value in np.ndenumerate(matrix):
                if not np.isnan(value):
                    axes.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=6,
                              color="#ffffff" if value < 55 else "#000000")  # fmt: skip
        tasks = np.unique(np.linspace(0, matrix.shape[1] - 1, min(matrix.shape[1], 10)).round().astype(int))
        axes.set_xticks(tasks, tasks + 1)
        rows = [row for row in tasks if row < len(matrix)]
        axes.set_yticks(rows, [row + 1 for row in rows])
        axes.set(title=TITLES[setting], xlabel="accuracy on task", ylabel="after task")
        figure.colorbar(image, ax=axes, label="%", shrink=0.8)
    return figure


def loss_curve(folder: Path, theme: Theme) -> Drawing | None:
    """From the run's log."""
    from matplotlib import pyplot

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if line["event"] == "log" and line["loss"] is not None]
    if not logged:
        return None
    figure, axes = pyplot.subplots(figsize=(COLUMN, 2.2))
    axes.plot([line["step"] for line in logged], [line["loss"] for line in logged], color=theme.ink)
    for line in lines:
        if line["event"] == "evaluation":
            axes.axvline(line["step"], color=theme.faint, linewidth=0.5, zorder=0)
    axes.set(xlabel="step", ylabel="loss")
    return figure
