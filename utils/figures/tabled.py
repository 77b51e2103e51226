"""Figures of finished runs: gains (Figs. 2 and 5), κ and λ (Fig. 3), forest plots, accuracies over a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, product
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from utils.config.resolve import Config
from utils.figures import style
from utils.figures.style import COLUMN, PAGE, colour_of, grid_of_axes, ink, label_of, legend_above, mark_steps
from utils.run.observers import read_log
from utils.run.training import steps_per_task
from utils.studies.compare import Paired, records_by_seed
from utils.studies.final_statistics import FEWEST_SEEDS, KINDS, Arm
from utils.studies.plans import METHODS, ONLINE, PLANS, SETTINGS, Experiment, places
from utils.studies.presets import PAPER
from utils.studies.results import LOWER_IS_BETTER, Column, Result, Table, tabulate
from utils.studies.selection import Selection
from utils.tables import TITLES

HATCHES = ("", "////")
LINES = ("-", "--")  # of a norm's first row, and of its others


def gains(table: Table) -> Drawing | None:
    """Draw bars of gains over BN: a panel for every setting and method, colours for norms, hatches for what varies."""
    rows = [row for row in table.rows if any(table.results[row, column].n for column in table.columns)]
    if not rows:
        return None
    figure, grid = grid_of_axes(2, 2, 4.0, sharex=True, sharey="row")
    for axes, (panel, members) in zip(grid.flat, groupby(table.columns, lambda column: column[:2]), strict=True):
        bars = {column: column[2].rpartition(", ")[0] for column in members}
        hatches = dict(zip(dict.fromkeys(bars.values()), HATCHES, strict=True))
        width = 0.8 / len(bars)
        for number, (column, variant) in enumerate(bars.items()):
            results = [table.results[row, column] for row in rows]
            norm = results[0].cell.experiment.norm
            places = np.arange(len(rows)) + (number - (len(bars) - 1) / 2) * width
            axes.bar(
                places, [result.mean or 0 for result in results], width, color=colour_of(norm),
                yerr=[result.std or 0 for result in results], hatch=hatches[variant],
                edgecolor=figure.get_facecolor(), linewidth=0.5, error_kw={"ecolor": ink(), "elinewidth": 0.6},
                label=f"{label_of(norm)}, {variant}",
            )  # fmt: skip
            for place, result in zip(places, results, strict=True):
                if not result.n:
                    axes.text(place, 0, "missing", rotation=90, ha="center", va="bottom", fontsize=5, color=ink())
        axes.axhline(0, color=ink(), linewidth=0.6)
        axes.set_title(", ".join(panel))
    labels = [row[1].replace(", M", "\nM").replace("Split ", "") for row in rows]
    for left, lower in zip(grid[:, 0], grid[1], strict=True):
        left.set_ylabel("gain over BN, points")
        lower.set_xticks(range(len(rows)), labels, fontsize=6)
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
        _write_values(axes, values, np.nanmean(values) if np.isfinite(values).any() else 0.0, "missing")
        axes.set_xticks(range(len(columns)), [column[-1] for column in columns])
        axes.set_yticks(range(len(rows)), [row[1].partition(", ")[2] for row in rows])
        axes.set_title(f"{setting}, {columns[0][0]}")
        figure.colorbar(image, ax=axes, label="final average accuracy, %")
    return figure


def _write_values(axes: Axes, values: np.ndarray, dark_below: float, missing: str = "", digits: int = 1) -> None:
    """Write the values of an image into its cells, readable on dark and light ones."""
    axes.grid(False)
    for (i, j), value in np.ndenumerate(values):
        text = missing if np.isnan(value) else f"{value:.{digits}f}"
        colour = ink() if np.isnan(value) else "#ffffff" if value < dark_below else "#000000"
        axes.text(j, i, text, ha="center", va="center", fontsize=6 + digits, color=colour)


def forest(panels: dict[str, dict[str, Paired]]) -> Drawing | None:
    """Draw paired differences with their intervals: a panel for every comparison, a line for every cell.

    More than four panels stand in two columns, so that their titles can be read. Gains and losses have colours; where
    the title says that lower is better, a gain lies below zero.
    """
    panels = {title: {name: cell for name, cell in cells.items() if cell.n} for title, cells in panels.items()}
    if not (panels := {title: cells for title, cells in panels.items() if cells}):
        return None
    names = list(dict.fromkeys(name for cells in panels.values() for name in cells))
    across = len(panels) if len(panels) <= 4 else 2
    down = -(-len(panels) // across)
    figure, grid = grid_of_axes(down, across, (0.9 + 0.17 * len(names)) * down, sharex=True, sharey=True)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, cells) in zip(grid.flat, panels.items(), strict=False):
        for name, paired in cells.items():
            place = names.index(name)
            is_gain, is_loss = paired.is_above, paired.is_below
            if title.endswith(LOWER_IS_BETTER):
                is_gain, is_loss = is_loss, is_gain
            colour = colour_of("adab2n") if is_gain else colour_of("bn") if is_loss else ink()
            if paired.interval is not None:
                axes.plot(paired.interval, [place, place], color=colour, linewidth=1)
            axes.plot(paired.differences, [place] * paired.n, "|", color=colour, markersize=4, alpha=0.6)
            axes.plot(paired.mean, place, "o", color=colour, markersize=3.5)
        axes.axvline(0, color=ink(), linewidth=0.6)
        axes.set_title(literal(title))
        axes.locator_params(axis="x", nbins=4)
    figure.supxlabel("points, 95 % interval", fontsize="medium")  # once: under narrow panels they would meet
    grid[0, 0].set_yticks(range(len(names)), [*map(literal, names)])
    grid[0, 0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def curves(table: Table, flag: str) -> Drawing | None:
    """Draw every metric against a flag: a panel for every group of rows, a band from the lowest to the highest seed."""
    panels: dict[tuple[str, Column], dict[str, list[Result]]] = {}
    for ((group, row), column), result in table.results.items():
        if result.n:
            panels.setdefault((group, column[1:]), {}).setdefault(row.removeprefix(f"{group} w/ "), []).append(result)
    if not panels:
        return None
    across = len({metric for _, metric in panels})
    down = -(-len(panels) // across)
    figure, grid = grid_of_axes(down, across, 2.3 * down, sharex=True)
    for axes, ((group, metric), rows) in zip(grid.flat, panels.items(), strict=False):
        drawn: set[str] = set()
        for row, results in rows.items():
            norm = results[0].cell.experiment.norm
            line = LINES[norm in drawn]
            drawn.add(norm)
            places = [dict(result.cell.experiment.flags)[flag] for result in results]
            seeds = [result.paired.differences for result in results]
            means, colour = [result.mean for result in results], colour_of(norm)
            axes.plot(places, means, f"o{line}", markersize=2.5, color=colour, label=literal(row))
            axes.fill_between(places, [*map(min, seeds)], [*map(max, seeds)], color=colour, alpha=0.12, linewidth=0)
        axes.set(title=literal(", ".join(filter(None, (group, *metric)))), xlabel=f"--{flag}", ylabel="%")
    legend_above(figure, grid.flat[0])
    return figure


def beside_published(selection: Selection) -> Drawing | None:
    """Draw our accuracies beside the published ones: a panel for every column and setting, a line for every cell.

    Only cells with all seeds and on the paper's data are drawn.
    """
    if selection.runs.preset.data != PAPER.data:
        return None
    tables = {"Class-IL": tabulate(PLANS["table3"], selection), "Task-IL": tabulate(PLANS["table2"], selection)}
    panels: dict[str, dict[str, Result]] = {}
    for column in tables["Class-IL"].columns:
        for setting, table in tables.items():
            cells = {row[1]: table.results[row, column] for row in table.rows if (row, column) in table.results}
            cells = {name: result for name, result in cells.items() if result.complete and result.paper is not None}
            if cells:
                panels["\n".join([setting, *column])] = cells
    if not panels:
        return None
    names = list(dict.fromkeys(name for table in tables.values() for _, name in table.rows))
    names = [name for name in names if any(name in cells for cells in panels.values())]
    figure, [row] = grid_of_axes(1, len(panels), 0.9 + 0.22 * len(names), sharey=True)
    for axes, (title, cells) in zip(row, panels.items(), strict=True):
        for name, result in cells.items():
            place, colour = names.index(name), colour_of(result.cell.experiment.norm)
            axes.errorbar(result.paper, place - 0.17, xerr=result.paper_std, fmt="D", color=ink(), markersize=4,
                          markerfacecolor=figure.get_facecolor(), elinewidth=0.8, label="published, ± std")  # fmt: skip
            axes.plot(result.paired.differences, [place + 0.17] * result.n, "|", color=colour, markersize=6)
            axes.plot(result.mean, place + 0.17, "o", color=colour, markersize=4.5, label="ours, mean and seeds")
        axes.set_title(title)
        axes.locator_params(axis="x", nbins=4)
        axes.margins(x=0.15)
    row[0].set_yticks(range(len(names)), names)
    row[0].set_ylim(len(names) - 0.5, -0.5)
    figure.supxlabel("final average accuracy, %", fontsize="medium")
    legend_above(figure, row[0])
    return figure


def final_statistics(arms: Sequence[Arm]) -> Drawing | None:
    """Draw what other statistics add to the accuracy with the running ones, a row of panels for every data set.

    Marks are means over seeds, dashes single seeds. Intervals are drawn from as many seeds as a clear difference needs.
    """
    if not arms:
        return None
    panels: dict[str, dict[str, list[tuple[Arm, str]]]] = {}
    for arm in arms:
        for setting in arm.settings:
            title = f"{arm.method}, {TITLES[setting]}"
            panels.setdefault(arm.data, {}).setdefault(title, []).append((arm, setting))
    kinds = {kind: title for kind, title in KINDS.items() if any(arm.accuracy(arm.settings[0], kind) for arm in arms)}
    figure, grid = grid_of_axes(len(panels), max(map(len, panels.values())), 1.2 + 1.4 * len(panels))
    handles = {}
    for row, (data, of_data) in zip(grid, panels.items(), strict=True):
        for axes, (title, members) in zip(row, of_data.items(), strict=False):
            for (number, (arm, setting)), (place, kind) in product(enumerate(members), enumerate(kinds)):
                x, colour = place + 0.8 * ((number + 0.5) / len(members) - 0.5), colour_of(arm.norm)
                difference = Paired(tuple(arm.change(setting, kind).values()))
                if difference.interval and difference.n >= FEWEST_SEEDS:
                    axes.plot([x, x], difference.interval, color=colour, linewidth=1)
                axes.plot([x] * difference.n, difference.differences, "_", color=colour, markersize=3, alpha=0.6)
                if difference.n:
                    face = figure.get_facecolor() if arm.forward == "separate" else colour
                    [handles[arm.name]] = axes.plot(x, difference.mean, "s" if "κ" in arm.name else "o", color=colour,
                                                    markersize=3.5, markerfacecolor=face)  # fmt: skip
            axes.axhline(0, color=ink(), linewidth=0.6)
            axes.set_title(title)
            axes.set_xticks(range(len(kinds)), kinds.values(), rotation=90)
            axes.grid(axis="x", visible=False)
        counts = sorted(len(arm.records) for members in of_data.values() for arm, _ in members)
        seeds = " to ".join(dict.fromkeys(map(str, (counts[0], counts[-1]))))
        row[0].set_ylabel(data.replace(" in ", "\nin ").replace(", M", "\nM") + f"\nn = {seeds}")
        for axes in row[len(of_data) :]:
            axes.set_axis_off()
    for column in grid.T:
        for axes in [axes for axes in column if axes.axison][:-1]:
            axes.tick_params(labelbottom=False)
    figure.supylabel("points, minus running statistics", fontsize="medium")
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4)
    return figure


def literal(text: str) -> str:
    """Return a name that a user may have chosen, without what Matplotlib takes for a formula."""
    return text.replace("$", r"\$")


Differences = tuple[Paired, Paired, Paired | None]  # by confirmatory and by other seeds, and the paper's


def differences(panels: dict[str, dict[tuple[str, str], Differences]]) -> Drawing | None:
    """Draw mean differences with their intervals: a panel for every setting, a line for every comparison and method.

    The line of a comparison over all methods has an empty method and is thicker.
    """
    if not panels:
        return None
    keys = dict.fromkeys(line for cells in panels.values() for line in cells)
    lines = [line for title in dict.fromkeys(title for title, _ in keys) for line in keys if line[0] == title]
    figure, [row] = grid_of_axes(1, len(panels), 1.0 + 0.2 * len(lines), sharey=True)
    for axes, (panel, cells) in zip(row, panels.items(), strict=True):
        for line, (ours, exploratory, published) in cells.items():
            place, size = lines.index(line), 1.0 if line[1] else 1.6
            colour = colour_of("adab2n") if ours.is_above else colour_of("bn") if ours.is_below else ink()
            for paired, shift, shade, label in (
                (exploratory, 0.3, colour_of("joint"), "exploratory seeds"),
                (ours, 0.0, colour, "confirmatory seeds, 95 % interval"),
            ):
                if paired.interval is not None:
                    axes.plot(paired.interval, [place + shift] * 2, color=shade, linewidth=size)
                if paired.mean is not None:
                    axes.plot(paired.mean, place + shift, "o", color=shade, markersize=2.5 * size, label=label)
            if published is not None:
                axes.plot(published.mean, place - 0.05, "D", color=colour_of("in"), markersize=3.5,
                          markerfacecolor="none", label="paper")  # fmt: skip
        axes.axvline(0, color=ink(), linewidth=0.6)
        axes.set_title(panel)
        axes.grid(visible=False, axis="y")
        axes.locator_params(axis="x", nbins=6, integer=True)
    labels = [literal(method or title) for title, method in lines]
    row[0].set_yticks(range(len(lines)), labels)
    for text, (_, method) in zip(row[0].get_yticklabels(), lines, strict=True):
        text.set_fontweight("normal" if method else "bold")
    row[0].set_ylim(len(lines) - 0.4, -0.6)
    figure.supxlabel("difference of final average accuracies, points", fontsize="medium")
    legend_above(figure, *row)
    return figure


def after_each_task(selection: Selection) -> Drawing | None:
    """Draw mean accuracy on the tasks seen after each task; the band is from the lowest to the highest seed."""
    preset = selection.runs.preset
    panels: dict[str, dict[str, np.ndarray]] = {}
    for (key, buffer), model, norm in product(places(preset), ONLINE, ("bn", "cn", "adab2n", *preset.also)):
        records = records_by_seed(Experiment(model, norm, key, buffer), selection).values()
        for setting, title in SETTINGS.items() if records else ():
            panel = f"{title}, {METHODS[model]}, {preset.data[key].title}, M = {buffer}"
            seeds = [means_of_seen_tasks(record["results"][setting]["matrix"]) for record in records]
            panels.setdefault(panel, {})[norm] = np.array(seeds)
    if not panels:
        return None
    down = -(-len(panels) // 2)
    figure, grid = grid_of_axes(down, min(2, len(panels)), 2.2 * down)
    for axes, (panel, norms) in zip(grid.flat, panels.items(), strict=False):
        for norm, values in norms.items():
            tasks, label = np.arange(1, values.shape[1] + 1), f"{label_of(norm)} (n = {len(values)})"
            axes.plot(tasks, values.mean(0), "o-", markersize=2.5, color=colour_of(norm), label=label)
            axes.fill_between(tasks, values.min(0), values.max(0), color=colour_of(norm), alpha=0.15, linewidth=0)
        axes.set(title=panel, xlabel="tasks trained", ylabel="accuracy, %")
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    grid.flat[0].legend()
    return figure


def means_of_seen_tasks(matrix: list[list[float]]) -> list[float]:
    """Return the mean accuracy on the tasks seen, after each task."""
    return [float(np.mean(row[: i + 1])) for i, row in enumerate(matrix)]


def while_training(records: dict[str, dict]) -> Drawing:
    """Draw mean accuracy on the tasks seen so far, at every point of `--eval_every` and the ends of tasks."""
    figure, [[axes]] = grid_of_axes(1, 1, 2.3, COLUMN)
    for norm, record in records.items():
        result = record["results"]["class_il"]
        points = [(point["step"], float(np.mean(point["accuracy"]))) for point in result["points"]]
        points += zip(ends_of_tasks(record), means_of_seen_tasks(result["matrix"]), strict=True)
        axes.plot(*zip(*sorted(points), strict=True), color=colour_of(norm), label=label_of(norm))
    mark_steps(axes, ends_of_tasks(next(iter(records.values())))[:-1])
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
        _write_values(axes, matrix if matrix.shape[1] <= 10 else matrix[:0], dark_below=55, digits=0)
        tasks = style.evenly_chosen(matrix.shape[1], 10)
        rows = tasks[tasks < len(matrix)]
        axes.set_xticks(tasks, tasks + 1)
        axes.set_yticks(rows, rows + 1)
        axes.set(title=TITLES[setting], xlabel="accuracy on task", ylabel="after task")
        figure.colorbar(image, ax=axes, label="%", shrink=0.8)
    return figure


def loss_curve(folder: Path) -> Drawing | None:
    """Draw the loss in the run's log."""
    lines = read_log(folder)
    points = [(line["step"], line["loss"]) for line in lines if line["event"] == "log" and line["loss"] is not None]
    if not points:
        return None
    figure, [[axes]] = grid_of_axes(1, 1, 2.2, COLUMN)
    axes.plot(*zip(*points, strict=True), color=ink())
    mark_steps(axes, [line["step"] for line in lines if line["event"] == "evaluation"])
    axes.set(xlabel="step", ylabel="loss")
    return figure
