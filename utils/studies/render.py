"""Write reports: tables and figures as one HTML page, Markdown and LaTeX, and all numbers as CSV."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from utils.packages import import_or_usage_error
from utils.studies import claims
from utils.studies.plans import METHODS, SETTINGS, title_of
from utils.studies.results import NOTABLE, Result, Table
from utils.tables import markdown_table

MISSING = "missing"
TITLE = "AdaB²N: the paper and our runs"
CLAIMS_TITLE = "What the paper says, and what these runs say of it"
TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Picture:
    """A figure as files, light and dark."""

    id: str
    title: str
    caption: str
    folder: Path

    def inlined(self) -> dict[str, str]:
        light, dark = (
            base64.b64encode((self.folder / f"{self.id}{suffix}.svg").read_bytes()).decode() for suffix in ("", "-dark")
        )
        return {"id": self.id, "title": self.title, "caption": self.caption, "light": light, "dark": dark}


@dataclass(frozen=True)
class Report:
    """The contents of a report; every part may be empty."""

    tables: list[Table]
    facts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    verdicts: list[claims.Verdict] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    scale: str = ""  # preset and seeds, for captions


# --- cells ------------------------------------------------------------------------------------------------------------


def with_std(mean: float | None, std: float | None, digits: int = 2) -> str:
    if mean is None:
        return MISSING
    return f"{mean:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def details(result: Result, table: Table) -> list[str]:
    """Return the number of seeds, the published number and the difference to it, as far as there are any."""
    texts = [f"n = {result.n}" if result.complete else f"n = {result.n} of {len(result.values)}"]
    if result.paper is not None:
        texts.append(f"paper {with_std(result.paper, result.paper_std)}")
        if table.preset.comparable and result.difference is not None:
            texts.append(f"Δ {result.difference:+.2f}")
            texts.append("z –" if result.z is None else f"z {round(result.z, 1) + 0.0:+.1f}")  # never -0.0
    return texts


def is_notable(result: Result, table: Table) -> bool:
    return table.preset.comparable and result.z is not None and abs(result.z) > NOTABLE


def markdown_cell(result: Result | None, table: Table) -> str:
    if result is None:
        return ""
    bold = "**" if table.is_best(result) else ""
    flag = " ⚠" if is_notable(result, table) else ""
    return f"{bold}{with_std(result.mean, result.std)}{bold}{flag} ({'; '.join(details(result, table))})"


def latex_cell(result: Result | None, table: Table) -> str:
    if result is None or result.mean is None:
        return "--"
    spread = "" if result.std is None else rf"{{\footnotesize \textpm {result.std:.2f}}}"
    text = f"{result.mean:.2f}{spread}"
    return rf"\textbf{{{text}}}" if table.is_best(result) else text


def html_cell(result: Result | None, table: Table, folder: Path) -> dict[str, Any] | None:
    """Return what the template shows of a cell; links to records are relative to `folder`."""
    if result is None:
        return None
    return {
        "text": with_std(result.mean, result.std),
        "missing": result.mean is None,
        "best": table.is_best(result),
        "notable": is_notable(result, table),
        "details": details(result, table),
        "seeds": [
            (seed, f"{result.values[seed]:.2f}", Path(os.path.relpath(path, folder)).as_posix())
            for seed, path in result.paths.items()
        ],
    }


# --- tables -----------------------------------------------------------------------------------------------------------

Group = tuple[str, list[tuple[str, list[Any]]]]  # its title, and (name, cells) of its rows


def groups_of(table: Table, cell: Callable[[Result | None, Table], Any]) -> list[Group]:
    """Return the rows by group. A group has a title if the names of its rows do not begin with it."""
    groups: list[Group] = []
    columns = table.columns
    for group, members in groupby(table.rows, key=lambda row: row[0]):
        rows = [(row[1], [cell(table.results.get((row, column)), table) for column in columns]) for row in members]
        groups.append(("" if rows[0][0].startswith(group) else group, rows))
    return groups


def texts_of(table: Table) -> list[tuple[str, list[str]]]:
    """Return the rows that are text only."""
    return [(name, [by.get(column, MISSING) for column in table.columns]) for name, by in table.texts.items()]


def head_of(table: Table) -> list[list[tuple[str, int]]]:
    """Return the levels of the head, each as titles with the number of columns below them."""
    depths = range(1, 1 + max(map(len, table.columns)))
    return [
        [(title[-1], len(list(members))) for title, members in groupby(column[:depth] for column in table.columns)]
        for depth in depths
    ]


def markdown(table: Table, scale: str = "") -> str:
    rows = [
        [f"{title}: {name}" if title else name, *cells]
        for title, members in groups_of(table, markdown_cell)
        for name, cells in members
    ]
    rows += [[name, *cells] for name, cells in texts_of(table)]
    caption = f"*In the paper: {table.caption}*" if table.caption else ""
    content = markdown_table(["", *map(", ".join, table.columns)], rows)
    parts = [f"## {table.id}: {table.title}", caption, f"*{scale}*" if scale else "", content, table.note]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


TEX = str.maketrans({
    "±": r"\textpm ", "κ": r"$\kappa$", "λ": r"$\lambda$", "²": "$^2$", "%": r"\%", "&": r"\&", "_": r"\_",
    "Δ": r"$\Delta$", "–": "--", "#": r"\#",
})  # fmt: skip


def tex(text: str) -> str:
    return text.translate(TEX)


def latex(table: Table, scale: str = "") -> str:
    """Return the table in the paper's layout: methods down, data sets across, the best of a method in bold.

    It is shrunk to the width of the text if it is wider. It needs the packages booktabs and graphicx.
    """
    width = len(table.columns)
    caption = table.caption if table.preset.comparable and table.caption else f"{table.title}. {scale}".strip()
    lines = [
        r"\begin{table*}", r"\centering", rf"\caption{{{tex(caption)}}}", rf"\label{{table:{table.id}}}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'c' * width}}}", r"\toprule",
    ]  # fmt: skip
    for level in head_of(table):
        titles = [rf"\multicolumn{{{span}}}{{c}}{{{tex(title)}}}" if span > 1 else tex(title) for title, span in level]
        lines.append(" & ".join(["", *titles]) + r" \\")
    for number, (title, rows) in enumerate(groups_of(table, latex_cell)):
        if number == 0 or len(rows) > 1:
            lines.append(r"\midrule")
        if title:
            lines.append(rf"\multicolumn{{{width + 1}}}{{l}}{{\textit{{{tex(title)}}}}} \\")
        lines += [" & ".join([tex(name), *cells]) + r" \\" for name, cells in rows]
    if texts := texts_of(table):
        lines += [r"\midrule", *(" & ".join(map(tex, [name, *cells])) + r" \\" for name, cells in texts)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}", r"\end{table*}", ""])


def as_csv(tables: list[Table]) -> str:
    """Return one line per cell, numbers as numbers; of tables without cells, the texts and their numbers."""
    import pandas

    rows = [csv_row(table, result) for table in tables for result in table.results.values()]
    texts = [
        {
            "table": table.id,
            "row": row,
            "column": " / ".join(column),
            "text": text,
            **table.numbers.get((row, column), {}),
        }
        for table in tables
        for row, texts in table.texts.items()
        for column, text in texts.items()
    ]
    frame = pandas.DataFrame(rows).astype({"memory": "Int64"}) if rows else pandas.DataFrame(texts)
    return frame.to_csv(index=False, lineterminator="\n")


def csv_row(table: Table, result: Result) -> dict[str, Any]:
    cell, experiment, comparable = result.cell, result.cell.experiment, table.preset.comparable
    data = table.preset.data.get(experiment.data)
    return {
        "table": table.id, "row": cell.row, "column": " / ".join(cell.column),
        "method": METHODS.get(experiment.model, experiment.model), "norm": title_of(experiment.norm),
        "dataset": data.title if data else experiment.data, "memory": experiment.buffer,
        "flags": " ".join(f"{name}={value}" for name, value in experiment.flags),
        "over": "" if cell.baseline is None else title_of(cell.baseline.norm),
        "setting": next((SETTINGS[key] for key in cell.metric if key in SETTINGS), ""), "metric": cell.metric[-1],
        "ours": result.mean, "ours_std": result.std, "n": result.n, "seeds": len(result.values),
        "paper": result.paper, "paper_std": result.paper_std,
        "difference": result.difference if comparable else None, "z": result.z if comparable else None,
        "values": " ".join("" if value is None else repr(value) for value in result.values.values()),
    }  # fmt: skip


# --- pages ------------------------------------------------------------------------------------------------------------


@cache
def environment() -> Any:
    """Return the Jinja environment of the templates; HTML is escaped, Markdown is not."""
    jinja2 = import_or_usage_error("jinja2", "reports")
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=lambda name: name.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True,
    )  # fmt: skip


def html(report: Report, folder: Path) -> str:
    results = [result for table in report.tables for result in table.results.values()]
    return environment().get_template("report.html.j2").render(
        report=report, title=TITLE, claims_title=CLAIMS_TITLE, css=(TEMPLATES / "report.css").read_text(),
        tables=[(table, head_of(table), groups_of(table, lambda result, table: html_cell(result, table, folder)),
                 texts_of(table)) for table in report.tables],
        ids=[table.id for table in report.tables],
        figures=[picture.inlined() for picture in report.pictures],
        verdicts=[claims.words(verdict) for verdict in report.verdicts], claim_head=claims.HEAD,
        comparable=any(table.preset.comparable for table in report.tables), notable=f"{NOTABLE:g}",
        has_paper=any(result.paper is not None for result in results),
        has_missing=any(result.mean is None for result in results),
    )  # fmt: skip


def page_of_markdown(report: Report) -> str:
    parts = [f"# {TITLE}\n", *(f"{fact}\n" for fact in report.facts)]
    parts += [f"- warning: {text}\n" for text in report.problems]
    if report.verdicts:
        parts += [f"## {CLAIMS_TITLE}\n", markdown_table(claims.HEAD, map(claims.words, report.verdicts))]
    return "\n".join([*parts, *(markdown(table, report.scale) for table in report.tables)])


def write(folder: Path, report: Report) -> Path:
    """Write all files of the report below `folder` and return the HTML page."""
    folder.mkdir(parents=True, exist_ok=True)
    report.facts.append(f"Written on {date.today().isoformat()}.")
    files = {
        "report.md": page_of_markdown(report),
        "report.csv": as_csv(report.tables),
        "report.html": html(report, folder),
    }
    for table in report.tables:
        files[f"{table.id}.md"] = markdown(table, report.scale)
        files[f"{table.id}.tex"] = latex(table, report.scale)
        files[f"{table.id}.csv"] = as_csv([table])
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "report.html"
