"""Tables of results as Markdown and LaTeX, and all numbers as CSV."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import starmap
from pathlib import Path
from typing import Any

import jinja2
import pandas

from utils.studies.plans import METHODS, SETTINGS, title_of
from utils.studies.presets import PRESETS
from utils.studies.results import NOTABLE, Result, Table
from utils.studies.verdicts import HEAD, Verdict, table_row
from utils.tables import markdown_table, markdown_text

MISSING = "missing"
CLAIMS_TITLE = "What the paper says, and what these runs say of it"
TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Report:
    """The contents of a report; every part but the title may be empty."""

    title: str
    tables: list[Table] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    verdicts: list[tuple[Verdict, Verdict]] = field(default_factory=list)  # of confirmatory and of other seeds
    figures: dict[str, str] = field(default_factory=dict)  # titles by id
    scale: str = ""  # preset and seeds, for captions


# --- cells ------------------------------------------------------------------------------------------------------------


def with_std(mean: float | None, std: float | None, sign: str = "") -> str:
    if mean is None:
        return MISSING
    return f"{mean:{sign}.2f}" + ("" if std is None else f" ± {std:.2f}")


def sign_of(result: Result) -> str:
    """Return the format of a result's sign: differences have one."""
    return "" if result.cell.baseline is None else "+"


def mean_text(result: Result) -> str:
    return with_std(result.mean, result.std, sign_of(result))


def details(result: Result, table: Table) -> list[str]:
    """Return the number of seeds, a difference's interval, the published number and the difference to it, if any."""
    texts = [f"n = {result.n}" if result.complete else f"n = {result.n} of {len(result.values)}"]
    if result.cell.baseline is not None and result.paired.interval is not None:
        texts.append(f"95 % {result.paired.interval_text(2)}")
    if result.paper is not None:
        texts.append(f"paper {with_std(result.paper, result.paper_std)}")
        if table.preset.comparable and result.difference is not None:
            texts.append(f"Δ {result.difference:+.2f}")
            texts.append("z –" if result.z is None else f"z {round(result.z, 1) + 0.0:+.1f}")  # never -0.0
    return texts


def is_notable(result: Result, table: Table) -> bool:
    return table.preset.comparable and result.z is not None and abs(result.z) > NOTABLE


def markdown_cell(result: Result, table: Table) -> str:
    bold = "**" if table.is_best(result) else ""
    flag = " ⚠" if is_notable(result, table) else ""
    return f"{bold}{mean_text(result)}{bold}{flag} ({'; '.join(details(result, table))})"


def latex_cell(result: Result, table: Table) -> str:
    if result.mean is None:
        return "--"
    std = "" if result.std is None else rf"{{\footnotesize \textpm {result.std:.2f}}}"
    text = f"{result.mean:{sign_of(result)}.2f}{std}"
    return rf"\textbf{{{text}}}" if table.is_best(result) else text


# --- tables -----------------------------------------------------------------------------------------------------------


def frame_of(
    table: Table, cell: Callable[[Result, Table], str], text: Callable[[str], str], empty: str = ""
) -> pandas.DataFrame:
    """Return the table as strings: `cell` writes results, `text` everything else. A row is titled with its group."""
    rows: dict[str, list[str]] = {}
    for group, name in table.rows:
        results = [table.results.get(((group, name), column)) for column in table.columns]
        title = name if name.startswith(group) else f"{group}: {name}"
        rows[text(title)] = [cell(result, table) if result else empty for result in results]
    for name, texts in table.texts.items():
        rows[text(name)] = [text(texts.get(column, MISSING)) for column in table.columns]
    columns = pandas.MultiIndex.from_tuples([tuple(map(text, column)) for column in table.columns])
    return pandas.DataFrame.from_dict(rows, orient="index", columns=columns)


def markdown(table: Table, scale: str = "") -> str:
    frame = frame_of(table, markdown_cell, markdown_text)
    caption = f"*In the paper: {table.caption}*" if table.caption else ""
    head = ["", *(markdown_text(", ".join(column)) for column in table.columns)]
    content = markdown_table(head, frame.itertuples(name=None))
    title, scale = markdown_text(f"{table.id}: {table.title}"), f"*{markdown_text(scale)}*" if scale else ""
    parts = [f"## {title}", caption, scale, content, table.note]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


TEX = str.maketrans({
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"\textpm ", "κ": r"$\kappa$", "λ": r"$\lambda$", "²": "$^2$", "%": r"\%", "&": r"\&", "_": r"\_",
    "Δ": r"$\Delta$", "–": "--", "#": r"\#",
})  # fmt: skip


def latex(table: Table, scale: str = "") -> str:
    """Return the table in the paper's layout: methods down, data sets across, the best of a method in bold.

    It is shrunk to the width of the text if it is wider. It needs the packages booktabs and graphicx.
    """
    caption = table.caption if table.preset.comparable and table.caption else f"{table.title}. {scale}".strip()
    frame = frame_of(table, latex_cell, lambda text: text.translate(TEX), empty="--")
    layout = f"l{'c' * len(table.columns)}"
    return "\n".join([
        r"\begin{table*}", r"\centering", rf"\caption{{{caption.translate(TEX)}}}", rf"\label{{table:{table.id}}}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        frame.to_latex(escape=False, column_format=layout, multicolumn_format="c").strip() + "}", r"\end{table*}", "",
    ])  # fmt: skip


def as_csv(tables: list[Table]) -> str:
    """Return one line per cell, numbers as numbers; Table 10's cells have a text and other numbers."""
    rows = [csv_row(table, result) for table in tables for result in table.results.values()]
    texts = [{"table": table.id, "row": row, "column": " / ".join(column), "text": text}
             | table.numbers.get((row, column), {})
             for table in tables for row, texts in table.texts.items() for column, text in texts.items()]  # fmt: skip
    frame = pandas.DataFrame([*rows, *texts]).astype({"memory": "Int64"} if rows else {})
    return frame.to_csv(index=False, lineterminator="\n")


def csv_row(table: Table, result: Result) -> dict[str, Any]:
    cell, experiment = result.cell, result.cell.experiment
    difference, z = (result.difference, result.z) if table.preset.comparable else (None, None)
    in_paper = {"paper": result.paper, "paper_std": result.paper_std, "difference": difference, "z": z}
    return {
        "table": table.id, "row": cell.row, "column": " / ".join(cell.column),
        "method": METHODS.get(experiment.model, experiment.model), "norm": title_of(experiment.norm),
        "dataset": table.preset.data[experiment.data].title, "memory": experiment.buffer,
        "flags": " ".join(f"{name}={value}" for name, value in experiment.flags),
        "over": "" if cell.baseline is None else title_of(cell.baseline.norm),
        "setting": next((SETTINGS[key] for key in cell.metric if key in SETTINGS), ""), "metric": cell.metric[-1],
        "ours": result.mean, "ours_std": result.std, "n": result.n, "seeds": len(result.values),
        **dict(zip(("interval_low", "interval_high"), result.paired.interval or (None, None), strict=True)),
        **(in_paper if table.preset.name in PRESETS else {}),  # not in a study of one's own
        "values": " ".join("" if value is None else repr(value) for value in result.values.values()),
    }  # fmt: skip


# --- pages ------------------------------------------------------------------------------------------------------------


def value_text(value: Any) -> str:
    return value if isinstance(value, str) else "–" if value is None else json.dumps(value)


def heading(table: Table) -> str:
    """Return a table's title, after its number if it is one of the paper's: Table 2: Online Task-IL."""
    number = re.fullmatch(r"(table|fig)(\d+)", table.id)
    return f"{'Table' if number[1] == 'table' else 'Figure'} {number[2]}: {table.title}" if number else table.title


@cache
def environment() -> jinja2.Environment:
    """Return the Jinja environment of the templates; HTML is escaped, Markdown is not."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=lambda name: bool(name and name.endswith(".html.j2")),
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True,
    )  # fmt: skip
    env.filters |= {"heading": heading, "value_text": value_text}
    return env


def page_of_markdown(report: Report) -> str:
    parts = [f"# {markdown_text(report.title)}\n", *(f"{markdown_text(fact)}\n" for fact in report.facts)]
    parts += [f"- warning: {markdown_text(text)}\n" for text in report.problems]
    if report.verdicts:
        parts += [f"## {CLAIMS_TITLE}\n", markdown_table(HEAD, starmap(table_row, report.verdicts))]
    return "\n".join([*parts, *(markdown(table, report.scale) for table in report.tables)])
