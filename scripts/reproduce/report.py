"""Reports: tables and figures as one page of HTML, as Markdown and LaTeX, and all numbers as CSV.

What a cell says is decided once, in `shown`; the templates beside this file only lay it out.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from datetime import date
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from scripts.reproduce import claims
from scripts.reproduce.plans import METHODS, SETTINGS, title_of
from scripts.reproduce.results import NOTABLE, Result, Table
from scripts.reproduce.style import CSS
from utils.packages import needed

MISSING = "missing"
TEMPLATES = Path(__file__).with_name("templates")
SELECTION_WORDS = {
    "fixed": "κ and λ are fixed: the framework's defaults, or those given.",
    "validation": "κ and λ were chosen on held-out training data, per data set, method and memory size.",
    "first_tasks": "κ and λ were chosen on held-out training data of the stream's first tasks.",
    "other": "κ and λ were chosen on held-out training data of another data set.",
    "test": "κ and λ were chosen ON THE TEST SET, as the authors apparently did: the numbers of AdaB²N are too good.",
}


@dataclass(frozen=True)
class Picture:
    """A figure that was drawn, as files."""

    id: str
    title: str
    caption: str
    folder: Path

    def inlined(self) -> dict[str, str]:
        words = {"id": self.id, "title": self.title, "caption": self.caption}
        for theme, stem in (("light", self.id), ("dark", f"{self.id}-dark")):
            words[theme] = base64.b64encode((self.folder / f"{stem}.svg").read_bytes()).decode()
        return words


@dataclass(frozen=True)
class Report:
    """All that a report is about; every part may be empty."""

    tables: list[Table]
    facts: list[str]
    problems: list[str]
    verdicts: list[claims.Verdict]
    pictures: list[Picture]
    scale: str = ""  # preset, seeds and network, for captions


# --- what is shown ----------------------------------------------------------------------------------------------------


def with_std(mean: float | None, std: float | None, digits: int) -> str:
    if mean is None:
        return MISSING
    return f"{mean:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def comparison(result: Result, table: Table) -> list[str]:
    """How ours stands to the paper, in a few short phrases."""
    if result.paper is None:
        return []
    words = [f"paper {with_std(result.paper, result.paper_std, table.digits)}"]
    if table.comparable and result.difference is not None:
        words.append(f"Δ {result.difference:+.{table.digits}f}")
        words.append("z –" if result.z is None else f"z {round(result.z, 1) + 0.0:+.1f}")  # never -0.0
    return words


def seeds(result: Result) -> str:
    return f"n = {result.n}" if result.complete else f"n = {result.n} of {len(result.values)}"


def is_notable(result: Result, table: Table) -> bool:
    return table.comparable and result.z is not None and abs(result.z) > NOTABLE


def _cell(result: Result | None, table: Table, folder: Path | None) -> dict[str, Any] | None:
    if result is None:
        return None
    spread = "" if result.std is None else rf"{{\footnotesize \textpm {result.std:.{table.digits}f}}}"
    return {
        "ours": with_std(result.mean, result.std, table.digits),
        "missing": result.mean is None,
        "best": table.is_best(result),
        "notable": is_notable(result, table),
        "details": [seeds(result), *comparison(result, table)],
        "tex": "" if result.mean is None else f"{result.mean:.{table.digits}f}{spread}",
        "seeds": _seeds(result, table, folder) if folder else [],
    }


def _seeds(result: Result, table: Table, folder: Path) -> list[dict[str, Any]]:
    """Every seed's value, with the way from the report's folder to its record."""
    return [
        {"number": number, "value": f"{value:.{table.digits}f}", "link": Path(os.path.relpath(path, folder)).as_posix()}
        for number, value, path in result.by_seed
    ]


def shown(table: Table, scale: str, folder: Path | None = None) -> dict[str, Any]:
    """A table as templates take it. Links to records are as seen from `folder`."""
    groups = []
    for group, members in groupby(table.rows, key=lambda row: row[0]):
        rows = list(members)
        cells = [
            {
                "name": row[1],
                "cells": [_cell(table.results.get((row, column)), table, folder) for column in table.columns],
            }
            for row in rows
        ]
        # Where the names of a group's rows leave open which group they belong to, it has a title.
        groups.append({"title": group if group and not rows[0][1].startswith(group) else "", "rows": cells})
    texts = [(name, [by.get(column, MISSING) for column in table.columns]) for name, by in table.texts.items()]
    of_paper = table.comparable and table.caption
    return {
        "id": table.id, "title": table.title, "caption": table.caption, "scale": scale, "note": table.note,
        "head": _head(table.columns), "width": len(table.columns),
        "column_titles": [", ".join(column) for column in table.columns],
        "groups": groups, "tex_caption": table.caption if of_paper else " ".join([f"{table.title}.", scale]).strip(),
        "texts": texts,
    }  # fmt: skip


def _head(columns: list[tuple[str, ...]]) -> list[list[tuple[str, int]]]:
    """The titles of every level, and over how many columns each stands."""
    levels = (
        groupby(columns, key=lambda column, depth=depth: column[:depth])
        for depth in range(1, 1 + max(map(len, columns)))
    )
    return [[(title[-1], len(list(members))) for title, members in level] for level in levels]


# --- templates --------------------------------------------------------------------------------------------------------


@cache
def _environment(kind: str):
    jinja2 = needed("jinja2", "reports")
    settings = {"trim_blocks": False, "keep_trailing_newline": True, "undefined": jinja2.StrictUndefined}
    if kind == "tex":  # whose own braces and percent signs stay
        settings |= {"block_start_string": "<%", "block_end_string": "%>", "variable_start_string": "<<",
                     "variable_end_string": ">>", "comment_start_string": "<#", "comment_end_string": "#>"}  # fmt: skip
    return jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=kind == "html", **settings)


def _filled(name: str, **values: Any) -> str:
    return _environment(name.split(".")[1]).get_template(f"{name}.j2").render(**values)


def markdown(table: Table, scale: str = "") -> str:
    return _filled("table.md", table=shown(table, scale))


TEX = {
    "±": r"\textpm ", "κ": r"$\kappa$", "λ": r"$\lambda$", "²": "$^2$", "%": r"\%", "&": r"\&", "_": r"\_",
    "Δ": r"$\Delta$", "–": "--", "#": r"\#",
}  # fmt: skip


def tex(text: str) -> str:
    return "".join(TEX.get(letter, letter) for letter in text)


def latex(table: Table, scale: str = "") -> str:
    """The paper's layout: methods down, data sets and memory sizes across, the best of a method in bold; shrunk to the
    width of the text where it is wider. Needs the packages booktabs and graphicx."""
    return _filled("table.tex", table=shown(table, scale), tex=tex)


def html(report: Report, folder: Path) -> str:
    cells = [result for table in report.tables for result in table.results.values()]
    return _filled(
        "report.html",
        css=CSS, facts=report.facts, problems=report.problems,
        tables=[shown(table, report.scale, folder) for table in report.tables],
        ids=[table.id for table in report.tables],
        figures=[picture.inlined() for picture in report.pictures],
        verdicts=[claims.words(verdict) for verdict in report.verdicts], claim_head=claims.HEAD,
        comparable=any(table.comparable for table in report.tables), notable=f"{NOTABLE:g}",
        has_paper=any(result.paper is not None for result in cells),
        has_missing=any(result.mean is None for result in cells),
    )  # fmt: skip


def page_of_markdown(report: Report) -> str:
    return _filled(
        "report.md",
        facts=report.facts, problems=report.problems, tables=report.tables,
        verdicts=[claims.words(verdict) for verdict in report.verdicts], claim_head=claims.HEAD,
        markdown=lambda table: markdown(table, report.scale),
    )  # fmt: skip


# --- CSV --------------------------------------------------------------------------------------------------------------


def frame(tables: list[Table]):
    """One row a cell, as a pandas DataFrame: what was run in columns of their own, and numbers as numbers."""
    import pandas

    rows = []
    for table in tables:
        for (_, column), result in table.results.items():
            cell, preset_data = result.cell, table.data
            setting = next((SETTINGS[key] for key in cell.metric if key in SETTINGS), "")
            experiment = cell.experiment
            rows.append({
                "table": table.id, "row": cell.row, "column": " / ".join(column),
                "method": METHODS.get(experiment.model, experiment.model), "norm": title_of(experiment.norm),
                "dataset": preset_data.get(experiment.data, experiment.data), "memory": experiment.buffer,
                "flags": " ".join(f"{name}={value}" for name, value in experiment.flags),
                "over": "" if cell.over is None else title_of(cell.over.norm),
                "setting": setting, "metric": cell.metric[-1],
                "ours": result.mean, "ours_std": result.std, "n": result.n, "seeds": len(result.values),
                "paper": result.paper, "paper_std": result.paper_std,
                "difference": result.difference if table.comparable else None,
                "z": result.z if table.comparable else None,
                "values": " ".join("" if value is None else repr(value) for value in result.values),
            })  # fmt: skip
    return pandas.DataFrame(rows).astype({"memory": "Int64"}) if rows else pandas.DataFrame(rows)


def as_csv(tables: list[Table]) -> str:
    """Cells; of tables that have none, such as Table 10's tests, the words and the numbers behind them."""
    import pandas

    found = frame([table for table in tables if table.results])
    if not len(found):
        found = pandas.DataFrame(
            {"table": table.id, "row": row, "column": " / ".join(column), "text": text}
            | table.numbers.get((row, " / ".join(column)), {})
            for table in tables
            for row, texts in table.texts.items()
            for column, text in texts.items()
        )
    return found.to_csv(index=False, lineterminator="\n")


# --- files ------------------------------------------------------------------------------------------------------------


def write(folder: Path, report: Report) -> Path:
    """Everything below `folder`; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)

    def put(name: str, text: str) -> None:
        (folder / name).write_text(text, encoding="utf-8")

    report.facts.append(f"Written on {date.today().isoformat()}.")
    for table in report.tables:
        put(f"{table.id}.md", markdown(table, report.scale))
        put(f"{table.id}.tex", latex(table, report.scale))
        put(f"{table.id}.csv", as_csv([table]))
    put("report.md", page_of_markdown(report))
    put("report.csv", as_csv(report.tables))
    put("report.html", html(report, folder))
    return folder / "report.html"
