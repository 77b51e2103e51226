"""The pages of a report: an index of claims and tables, a table of all runs, and a page for every run.

They need no network: the scripts of Plotly and DataTables lie beside them, copied from their Python packages.
"""

from __future__ import annotations

import json
import os
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from itertools import chain, starmap
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import quote

import pandas

from utils.config.loop_options import DROPPED_OPTIONS
from utils.config.resolve import SELECTORS, active_options, new_names, resolve, selected_entries
from utils.errors import UsageError
from utils.files import reject_links
from utils.run.observers import read_log
from utils.run.records import add_missing_metrics, plain, provenance_text
from utils.studies.compare import Paired
from utils.studies.plans import METHODS, title_of
from utils.studies.render import TEMPLATES, Report, details, environment, frame_of, is_notable, mean_text, sign_of
from utils.studies.results import NOTABLE, Result, Table
from utils.studies.runs import Run
from utils.studies.verdicts import HEAD, table_row
from utils.tables import FWT_NOTE, TITLES, caveat_lines, duration, metric_titles

Chart = dict[str, Any]  # data and layout, as Plotly takes them

MOST_POINTS = 2000  # of a curve on a page
MOST_COLUMNS = 8  # of a table that is drawn as a chart
# Options that a repeated run needs, though they do not identify it: rounding depends on them, or a result.
ALSO_IN_COMMANDS = ("num_threads", "deterministic", "tf32", "compile", "final_statistics", "late_evaluations", "probe")


def write_pages(report: Report, folders: Mapping[str, Path], folder: Path) -> None:
    """Write index.html, runs.html, a page for each of these folders of runs, by name, and what the pages load."""
    from plotly.offline import get_plotlyjs

    pages = folder / "runs"
    pages.mkdir(exist_ok=True)
    reject_links(pages, *pages.glob("*"))
    for page in pages.glob("*.html"):
        if page.stem not in folders:  # of a record that is gone
            page.unlink()
    (folder / "plotly.min.js").write_text(get_plotlyjs(), "utf-8")
    for name in ("explorer.css", "explorer.js"):
        (folder / name).write_bytes((TEMPLATES / name).read_bytes())
    records = {name: json.loads((path / "record.json").read_bytes()) for name, path in folders.items()}
    for record in records.values():
        add_missing_metrics(record)
    _write(folder / "runs.html", "runs.html.j2", root="", report=report, content=runs_table(records))
    for name, record in records.items():
        tables = [table for table in report.tables if name in table.records]
        context = run_context(record, folders[name], pages) | {"tables": tables}
        _write(pages / f"{name}.html", "run.html.j2", root="../", report=report, **context)
    _write(folder / "index.html", "index.html.j2", root="", report=report, **index_context(report))


def _write(path: Path, template: str, **values: Any) -> None:
    path.write_text(environment().get_template(template).render(**values), encoding="utf-8")


# --- the index --------------------------------------------------------------------------------------------------------


def index_context(report: Report) -> dict[str, Any]:
    results = [result for table in report.tables for result in table.results.values()]
    verdicts = pandas.DataFrame(starmap(table_row, report.verdicts), columns=HEAD).set_index(HEAD[0])
    columns = zip(("confirmatory seeds", "exploratory seeds"), zip(*report.verdicts, strict=True), strict=False)
    by_seeds = {title: {each.claim.statement: each.difference for each in column} for title, column in columns}
    return {
        "sections": [(table, html_table(table), difference_chart(table)) for table in report.tables if table.records],
        "empty": [(table, html_table(table)) for table in report.tables if not table.records],
        "figures": {id: title for id, title in report.figures.items() if id not in {t.id for t in report.tables}},
        "verdicts": verdicts.rename_axis(index=None, columns=HEAD[0]).to_html(border=0),
        "claims_chart": forest_chart(by_seeds),
        "comparable": any(table.preset.comparable for table in report.tables),
        "notable": f"{NOTABLE:g}",
        "has_paper": any(result.paper is not None for result in results),
        "has_missing": any(result.mean is None for result in results),
    }


def html_table(table: Table) -> str:
    return frame_of(table, html_cell, escape).to_html(escape=False, border=0)


def html_cell(result: Result, table: Table) -> str:
    """Return a cell that opens its seeds, each with links to the pages of its runs."""
    sign = sign_of(result)
    seeds = [(seed, f"{result.values[seed]:{sign}.2f}", list(map(page_address, names)))
             for seed, names in result.runs.items()]  # fmt: skip
    template = environment().get_template("cell.html.j2")
    content = template.render(
        text=mean_text(result), seeds=seeds, details=details(result, table), is_best=table.is_best(result),
        is_notable=is_notable(result, table), missing_seeds=[s for s, value in result.values.items() if value is None],
    )  # fmt: skip
    return content.replace("\n", " ")  # pandas would write \n


def page_address(name: str) -> str:
    return f"runs/{quote(name)}.html"


def difference_chart(table: Table) -> Chart | None:
    """Return a chart of a table of differences; None if it is another table, or has too many columns to tell apart."""
    if not all(result.cell.baseline is not None for result in table.results.values()):
        return None
    columns = table.differences(", ")
    return forest_chart(columns) if len(columns) <= MOST_COLUMNS else None


def forest_chart(columns: Mapping[str, Mapping[str, Paired]]) -> Chart | None:
    """Return means with their 95 % intervals: a line for every row, a colour for every column. None without runs."""
    names = dict.fromkeys(row for cells in columns.values() for row in cells)
    columns = {title: {row: cell for row, cell in cells.items() if cell.n} for title, cells in columns.items()}
    columns = {title: cells for title, cells in columns.items() if cells}
    rows = [row for row in names if any(row in cells for cells in columns.values())]
    traces = []
    for number, (title, cells) in enumerate(columns.items()):
        offset = (number + 0.5) / len(columns) - 0.5
        means = [cell.mean or 0.0 for cell in cells.values()]
        ends = [cell.interval or (mean, mean) for cell, mean in zip(cells.values(), means, strict=True)]
        traces.append({
            "type": "scatter", "mode": "markers", "name": plotly_text(title, 45), "x": means,
            "y": [rows.index(row) + 0.7 * offset for row in cells],
            "error_x": {"type": "data", "symmetric": False,
                        "array": [high - mean for (_, high), mean in zip(ends, means, strict=True)],
                        "arrayminus": [mean - low for (low, _), mean in zip(ends, means, strict=True)]},
            "text": [escape(f"{row}: {cell.text(2)}", quote=False) for row, cell in cells.items()],
            "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        })  # fmt: skip
    axis = {"tickvals": list(range(len(rows))), "ticktext": [plotly_text(row, 27) for row in rows],
            "range": [len(rows) - 0.5, -0.5], "zeroline": False, "tickfont": {"size": 11}}  # fmt: skip
    height = 150 + len(rows) * max(46, 14 * len(columns))
    layout = {"height": height, "yaxis": axis, "xaxis": {"title": {"text": "points, 95 % interval"}}}
    return {"data": traces, "layout": layout} if traces else None


def plotly_text(text: str, width: int) -> str:
    """Return a text as Plotly shows it letter by letter, broken into lines of this width."""
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return "<br>".join(escape(line, quote=False) for line in lines)


# --- all runs ---------------------------------------------------------------------------------------------------------


def runs_table(records: Mapping[str, dict[str, Any]]) -> str:
    """Return a table to sort, filter and search, with its scripts."""
    import itables.javascript

    rows = []
    for name, record in records.items():
        config = record["config"]
        rows.append({
            "run": f'<a href="{page_address(name)}">{escape(name.rpartition("-")[2])}</a>',
            "method": method_title(config), "norm": title_of(config["norm"]), "data set": config["dataset"],
            "scenario": config["scenario"], "memory": config.get("buffer_size", 0), "seed": config["seed"],
            **{f"{title}, FAA": record["results"].get(setting, {}).get("metrics", {}).get("faa")
               for setting, title in TITLES.items()},
            "steps": record["steps"], "minutes": record["wall_seconds"] / 60,
            "device": record["conditions"][0].get("device"), "date": record["date"][:10], "name": name,
        })  # fmt: skip
    frame = pandas.DataFrame(rows).dropna(axis="columns", how="all")
    for column in frame.columns.drop("run", errors="ignore"):
        frame[column] = frame[column].map(lambda value: escape(value) if isinstance(value, str) else value)
    table = itables.to_html_datatable(
        frame, connected=False, allow_html=True, showIndex=False, maxBytes=0, display_logo_when_loading=False,
        layout={"topStart": "search", "topEnd": "pageLength", "bottomStart": "info", "bottomEnd": "paging"},
        columnControl=[{"target": 0, "content": ["order"]}, {"target": 1, "content": ["search"]}],
        ordering={"indicators": False}, lengthMenu=[25, 100, 1000], scrollX=True, style="width:100%", table_id="runs",
        language={"search": "Search all columns:"}, text_in_header_can_be_selected=False,
    )  # fmt: skip
    return itables.javascript.generate_init_offline_itables_html(itables.options.dt_bundle) + table


def method_title(config: Mapping[str, Any]) -> str:
    return METHODS.get(config["model"], config["model"])


# --- one run ----------------------------------------------------------------------------------------------------------


def run_context(record: dict[str, Any], run_folder: Path, pages: Path) -> dict[str, Any]:
    """Return what the page of a run shows. `pages` is the folder of the page."""
    config, results, path = record["config"], record["results"], run_folder / "record.json"
    differences, command = configuration(config, path)
    events = read_log(run_folder) if (run_folder / "metrics.jsonl").exists() else []  # kept records have none
    by_setting = [result["metrics"] for result in results.values()]
    metrics = [(label, [values.get(name) for values in by_setting])
               for name, label in metric_titles().items() if any(name in values for values in by_setting)]  # fmt: skip
    by_kind = [part.get("final_statistics", {}) for part in results.values()]
    statistics = {kind: [fmean(part[kind]) if part.get(kind) else None for part in by_kind] for kind in chain(*by_kind)}
    late = {setting: part["late_evaluations"] for setting, part in results.items() if "late_evaluations" in part}
    return {
        "record": record, "title": f"{method_title(config)} with {title_of(config['norm'])} on {config['dataset']}",
        "settings": {setting: TITLES.get(setting, setting) for setting in results},
        "matrices": {setting: matrix_chart(result["matrix"]) for setting, result in results.items()},
        "loss": loss_chart(events), "accuracy": accuracy_chart(events, results), "has_log": bool(events),
        "metrics": metrics, "statistics": statistics, "late": late, "differences": differences, "command": command,
        "caveats": caveat_lines(config), "fwt_note": FWT_NOTE, "provenance": provenance_text(record),
        "time": duration(record["wall_seconds"]), "record_text": escape(path.read_text("utf-8"), quote=False),
        "record_address": quote(os.path.relpath(path, pages)),
    }  # fmt: skip


def configuration(config: dict[str, Any], path: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the options that differ from the defaults of the run's parts, and the command to repeat the run.

    If a part of the run is not loaded, as of a plug-in, there are no defaults to compare with, and the command takes
    the configuration from the record.
    """
    plugins = {"plugins": config["plugins"]} if config.get("plugins") else {}
    names = new_names()
    values = {names.get(name, name): tuple(value) if isinstance(value, list) else value
              for name, value in config.items() if name not in DROPPED_OPTIONS}  # fmt: skip
    chosen = {name: values[name] for name in (*SELECTORS, "scenario", "fidelity", "seed") if name in values}
    try:
        options = active_options(selected_entries(chosen))
        defaults = plain(resolve(chosen))
    except UsageError:
        return None, command_line({"config": path} | plugins)
    differences = {name: value for name, value in values.items() if value != defaults.get(name)}
    needed = {name: value for name, value in differences.items() if value is not None and name in options
              and (options[name].changes_numbers or name in ALSO_IN_COMMANDS)}  # fmt: skip
    return chosen | differences, command_line(chosen | needed | plugins)


def command_line(options: dict[str, Any]) -> str:
    return shlex.join(["python", "main.py", *Run("", options, Path(), 0).command()])


def matrix_chart(matrix: list[list[float | None]]) -> Chart:
    """Return the accuracy on every task after every task."""
    trace = {"type": "heatmap", "z": matrix, "x0": 1, "y0": 1, "zmin": 0, "zmax": 100, "colorscale": "Cividis",
             "hoverongaps": False, "colorbar": {"title": {"text": "%"}, "thickness": 12},
             "hovertemplate": "task %{x} after task %{y}: %{z:.2f} %<extra></extra>"}  # fmt: skip
    if len(matrix[0]) <= 10:
        trace["texttemplate"] = "%{z:.1f}"
    tasks = {"dtick": 1 if len(matrix[0]) <= 20 else 5, "showgrid": False, "zeroline": False}
    down = tasks | {"title": {"text": "after task"}, "autorange": "reversed"}
    layout = {"xaxis": tasks | {"title": {"text": "accuracy on task"}}, "yaxis": down, "height": 170 + 26 * len(matrix)}
    return {"data": [trace], "layout": layout}


def loss_chart(events: list[dict[str, Any]]) -> Chart | None:
    logged = [event for event in events if event["event"] == "log" and event["loss"] is not None]
    points = [(event["step"], event["loss"]) for event in logged]
    return curves({"loss": points}, "step", "loss") if points else None


def accuracy_chart(events: list[dict[str, Any]], results: dict[str, Any]) -> Chart:
    """Return the mean accuracy on the tasks seen: over steps if there is a log, otherwise after every task."""
    evaluations = [event for event in events if event["event"] in ("point", "evaluation")]
    lines = {}
    for setting, result in results.items():
        if evaluations:
            points = [(event["step"], event["mean"][setting]) for event in evaluations]
        else:
            rows = [[value for value in row[: i + 1] if value is not None] for i, row in enumerate(result["matrix"])]
            points = [(i + 1, fmean(row)) for i, row in enumerate(rows)]
        lines[TITLES.get(setting, setting)] = points
    return curves(lines, "step" if evaluations else "tasks trained", "accuracy on the tasks seen, %")


def curves(lines: Mapping[str, Sequence[tuple[int, float]]], x: str, y: str) -> Chart:
    """Return a chart of these lines. Of long ones, evenly chosen points are shown."""
    traces = []
    for name, points in lines.items():
        chosen = points[:: -(-len(points) // MOST_POINTS)]
        xs, ys = zip(*chosen, strict=True)
        marks = {"type": "scatter", "mode": "lines+markers", "marker": {"size": 4}}
        traces.append(marks | {"name": name, "x": xs, "y": ys})
    layout = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}, "showlegend": len(lines) > 1}
    return {"data": traces, "layout": layout}
