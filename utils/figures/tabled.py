"""Figures of finished runs: gains (Figs. 2 and 5), κ and λ (Fig. 3), forest plots, z, accuracies over a run."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from utils.config.resolve import Config
from utils.figures.style import COLUMN, PAGE, colour_of, faint, grid_of_axes, ink, label_of, legend_above
from utils.run.training import steps_per_task
from utils.studies.compare import Paired
from utils.studies.results import NOTABLE, Table
from utils.tables import TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

HATCHES = ("", "////")


def gains(table: Table) -> Drawing | None:
    """Draw bars of gains over BN: a panel for every setting and method, colours for norms, hatches for what varies."""
    rows = [row for row in table.rows if any(table.results[row, column].n for column in table.columns)]
    if not rows:
        return None
    figure, grid = grid_of_axes(2, 2, 4.0, sharex=True, sharey="row")
    for axes, (panel, members) in zip(grid.flat, groupby(table.columns, lambda column: column[:2]), strict=True):
        bars = list(members)
        variants = list(dict.fromkeys(column[2].rpartition(", ")[0] for column in bars))
        width = 0.8 / len(bars)
        for number, column in enumerate(bars):
            variant = column[2].rpartition(", ")[0]
            results = [table.results[row, column] for row in rows]
            norm = results[0].cell.experiment.norm
            places = np.arange(len(rows)) + (number - (len(bars) - 1) / 2) * width
            axes.bar(
                places, [result.mean or 0 for result in results], width, color=colour_of(norm),
                yerr=[result.std or 0 for result in results], hatch=HATCHES[variants.index(variant)],
                edgecolor=figure.get_facecolor(), linewidth=0.5, error_kw={"ecolor": ink(), "elinewidth": 0.6},
                label=f"{label_of(norm)}, {variant}",
            )  # fmt: skip
            for place, result in zip(places, results, strict=True):
                if not result.n:
                    axes.text(place, 0, "missing", rotation=90, ha="center", va="bottom", fontsize=5, color=ink())
        axes.axhline(0, color=ink(), linewidth=0.6)
        axes.set_title(", ".join(panel))
    labels = [row[1].replace(", M", "\nM").replace("Split ", "") for row in rows]
    for line in grid:
        line[0].set_ylabel("gain over BN, points")
    for axes in grid[1]:
        axes.set_xticks(range(len(rows)), labels, fontsize=6)
    legend_above(figure, grid.flat[0])
    return figure


def heat_map(table: Table) -> Drawing | None:
    """Draw accuracy for every κ (down) and λ (across), a panel for each setting."""
    if not any(result.n for result in table.results.values()):
        return None
    columns = table.columns
    settings = {setting: list(rows) for setting, rows in groupby(table.rows, lambda row: row[1].partition(", ")[0])}
    figure, [panels] = grid_of_axes(1, len(settings), 2.6)
    for axes, (setting, rows) in zip(panels, settings.items(), strict=True):
        means = [[table.results[row, column].mean for column in columns] for row in rows]
        values = np.array(means, dtype=float)  # None becomes NaN
        image = axes.imshow(values, cmap="cividis", aspect="auto")
        _write_values(axes, values, ".1f", np.nanmean(values) if np.isfinite(values).any() else 0.0, "missing")
        axes.set_xticks(range(len(columns)), [column[-1] for column in columns])
        axes.set_yticks(range(len(rows)), [row[1].partition(", ")[2] for row in rows])
        axes.set_title(f"{setting}, {columns[0][0]}")
        figure.colorbar(image, ax=axes, label="final average accuracy, %")
    return figure


def _write_values(
    axes: Axes, values: np.ndarray, form: str, dark_below: float, missing: str = "", size: int = 7
) -> None:
    """Write the values of an image into its cells, readable on dark and light ones."""
    axes.grid(False)
    for (i, j), value in np.ndenumerate(values):
        text = missing if np.isnan(value) else f"{value:{form}}"
        colour = ink() if np.isnan(value) else "#ffffff" if value < dark_below else "#000000"
        axes.text(j, i, text, ha="center", va="center", fontsize=size, color=colour)


def forest(panels: dict[str, dict[str, Paired]]) -> Drawing | None:
    """Draw paired differences with their intervals: a panel for every comparison, a line for every cell."""
    panels = {title: {name: cell for name, cell in cells.items() if cell.n} for title, cells in panels.items()}
    panels = {title: cells for title, cells in panels.items() if cells}
    if not panels:
        return None
    names = list(dict.fromkeys(name for cells in panels.values() for name in cells))
    figure, [row] = grid_of_axes(1, len(panels), 0.9 + 0.17 * len(names), sharex=True, sharey=True)
    for axes, (title, cells) in zip(row, panels.items(), strict=True):
        for name, paired in cells.items():
            place = names.index(name)
            colour = colour_of("adab2n") if paired.is_above else colour_of("bn") if paired.is_below else ink()
            if paired.interval is not None:
                axes.plot(paired.interval, [place, place], color=colour, linewidth=1)
            axes.plot(paired.differences, [place] * paired.n, "|", color=colour, markersize=4, alpha=0.6)
            axes.plot(paired.mean, place, "o", color=colour, markersize=3.5)
        axes.axvline(0, color=ink(), linewidth=0.6)
        axes.set_title(title)
        axes.locator_params(axis="x", nbins=4)
    figure.supxlabel("points, 95 % interval", fontsize="medium")  # once: under narrow panels they would meet
    row[0].set_yticks(range(len(names)), names)
    row[0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def z_scores(tables: list[Table]) -> Drawing | None:
    """Draw how far every cell is from the published one, in standard errors; only where that can be compared."""
    scores = {table.id: np.array([result.z for result in table.results.values() if result.z is not None])
              for table in tables if table.preset.comparable}  # fmt: skip
    scores = {id: z for id, z in scores.items() if len(z)}
    if not scores:
        return None
    figure, [[axes]] = grid_of_axes(1, 1, 2.6)
    axes.axhspan(-NOTABLE, NOTABLE, color=faint(), alpha=0.3, linewidth=0, label=f"|z| up to {NOTABLE:g}")
    start, middles = 0, {}
    for id, z in scores.items():
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


def after_each_task(curves: dict[str, dict[str, list[list[float]]]]) -> Drawing | None:
    """Draw mean accuracy on the tasks seen after each task: a panel for every place, a line for every norm.

    The band is from the lowest to the highest seed. `curves[panel][norm]` has a row for every seed.
    """
    curves = {panel: {norm: rows for norm, rows in norms.items() if rows} for panel, norms in curves.items()}
    curves = {panel: norms for panel, norms in curves.items() if norms}
    if not curves:
        return None
    down = -(-len(curves) // 2)
    figure, grid = grid_of_axes(down, min(2, len(curves)), 2.2 * down)
    for axes, (panel, norms) in zip(grid.flat, curves.items(), strict=False):
        for norm, rows in norms.items():
            values, tasks, label = np.array(rows), np.arange(1, len(rows[0]) + 1), f"{label_of(norm)} (n = {len(rows)})"
            axes.plot(tasks, values.mean(0), "o-", markersize=2.5, color=colour_of(norm), label=label)
            axes.fill_between(tasks, values.min(0), values.max(0), color=colour_of(norm), alpha=0.15, linewidth=0)
        axes.set(title=panel, xlabel="tasks trained", ylabel="accuracy, %")
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in list(grid.flat)[len(curves) :]:
        axes.set_axis_off()
    grid.flat[0].legend()
    return figure


def while_training(records: dict[str, dict], setting: str = "class_il") -> Drawing | None:
    """Draw mean accuracy on the tasks seen so far, at every point of `--eval_every` and the ends of tasks."""
    if not records:
        return None
    figure, [[axes]] = grid_of_axes(1, 1, 2.3, COLUMN)
    for norm, record in records.items():
        result = record["results"][setting]
        points = [(point["step"], float(np.mean(point["accuracy"]))) for point in result["points"]]
        ends = zip(ends_of_tasks(record), result["matrix"], strict=True)
        points += [(step, float(np.mean(row[: i + 1]))) for i, (step, row) in enumerate(ends)]
        axes.plot(*zip(*sorted(points), strict=True), color=colour_of(norm), label=label_of(norm))
    for step in ends_of_tasks(next(iter(records.values())))[:-1]:
        axes.axvline(step, color=faint(), linewidth=0.5, zorder=0)
    axes.set(xlabel="step", ylabel="accuracy on the tasks seen, %")
    axes.legend()
    return figure


def ends_of_tasks(record: dict) -> list[int]:
    """Return the steps after which tasks ended."""
    config = Config(**record["config"])
    return np.cumsum([steps_per_task(config, size) for size in record["data"]["train_sizes"]]).tolist()


def accuracy_matrix(record: dict) -> Drawing:
    """Draw accuracy on every task after every task."""
    results = record["results"]
    figure, [panels] = grid_of_axes(1, len(results), 2.8, PAGE if len(results) > 1 else COLUMN)
    for axes, (setting, result) in zip(panels, results.items(), strict=True):
        matrix = np.array(result["matrix"], dtype=float)  # None becomes NaN
        image = axes.imshow(matrix, cmap="cividis", vmin=0, vmax=100)
        _write_values(axes, matrix if matrix.shape[1] <= 10 else matrix[:0], ".0f", dark_below=55, size=6)
        tasks = np.unique(np.linspace(0, matrix.shape[1] - 1, min(matrix.shape[1], 10)).round().astype(int))
        rows = tasks[tasks < len(matrix)]
        axes.set_xticks(tasks, tasks + 1)
        axes.set_yticks(rows, rows + 1)
        axes.set(title=TITLES[setting], xlabel="accuracy on task", ylabel="after task")
        figure.colorbar(image, ax=axes, label="%", shrink=0.8)
    return figure


def loss_curve(folder: Path) -> Drawing | None:
    """Draw the loss in the run's log."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if line["event"] == "log" and line["loss"] is not None]
    if not logged:
        return None
    figure, [[axes]] = grid_of_axes(1, 1, 2.2, COLUMN)
    axes.plot([line["step"] for line in logged], [line["loss"] for line in logged], color=ink())
    for line in lines:
        if line["event"] == "evaluation":
            axes.axvline(line["step"], color=faint(), linewidth=0.5, zorder=0)
    axes.set(xlabel="step", ylabel="loss")
    return figure
