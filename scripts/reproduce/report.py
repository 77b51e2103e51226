"""Tables as Markdown, LaTeX and CSV, and one page of HTML with everything."""

from __future__ import annotations

import csv
from datetime import date
from html import escape
from io import StringIO
from itertools import groupby
from pathlib import Path

from scripts.reproduce.plans import Unavailable
from scripts.reproduce.results import NOTABLE, Result, Table
from scripts.reproduce.style import CSS

MISSING = "missing"
SELECTION_WORDS = {
    "fixed": "κ and λ are fixed: the framework's defaults, or those given.",
    "validation": "κ and λ were chosen on held-out training data, per data set, method and memory size.",
    "test": "κ and λ were chosen ON THE TEST SET, as the authors apparently did: the numbers of AdaB²N are too good.",
}


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


def needs_title(group: str, rows: list[tuple[str, str]]) -> bool:
    """Whether the names of a group's rows leave open which group they belong to."""
    return bool(group) and not rows[0][1].startswith(group)


def is_notable(result: Result, table: Table) -> bool:
    return table.comparable and result.z is not None and abs(result.z) > NOTABLE


# --- Markdown ---------------------------------------------------------------------------------------------------------


def markdown(table: Table) -> str:
    head = ["", *(", ".join(column) for column in table.columns)]
    lines = [f"## {table.id}: {table.title}", ""]
    lines += [f"*In the paper: {table.caption}*", ""] if table.caption else []
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for group, row in table.rows:
        name = f"{group}: {row}" if needs_title(group, [(group, row)]) else row
        cells = [_markdown_cell(table, (group, row), column) for column in table.columns]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    for name, texts in table.texts.items():
        lines.append("| " + " | ".join([name, *(texts.get(column, MISSING) for column in table.columns)]) + " |")
    return "\n".join([*lines, "", table.note, ""] if table.note else [*lines, ""])


def _markdown_cell(table: Table, row, column) -> str:
    result = table.results.get((row, column))
    if result is None:
        return ""
    ours = with_std(result.mean, result.std, table.digits)
    if table.is_best(result):
        ours = f"**{ours}**"
    flag = " ⚠" if is_notable(result, table) else ""
    return f"{ours}{flag} ({'; '.join([seeds(result), *comparison(result, table)])})"


# --- LaTeX ------------------------------------------------------------------------------------------------------------

TEX = {
    "±": r"\textpm ",
    "κ": r"$\kappa$",
    "λ": r"$\lambda$",
    "²": "$^2$",
    "%": r"\%",
    "&": r"\&",
    "_": r"\_",
    "Δ": r"$\Delta$",
    "–": "--",
}


def tex(text: str) -> str:
    return "".join(TEX.get(letter, letter) for letter in text)


def latex(table: Table) -> str:
    """The paper's layout: methods down, data sets and memory sizes across, the best of a method in bold."""
    caption = table.caption if table.comparable and table.caption else table.title  # other data, other caption
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{tex(caption)}}}"]
    lines += [rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}", r"\toprule", *_latex_head(table.columns)]
    for number, (group, rows) in enumerate(groupby(table.rows, key=lambda row: row[0])):
        rows = list(rows)
        lines += [r"\midrule"] if number == 0 or len(rows) > 1 else []
        if needs_title(group, rows):
            lines.append(rf"\multicolumn{{{len(table.columns) + 1}}}{{l}}{{\textit{{{tex(group)}}}}} \\")
        lines += [_latex_row(table, row) for row in rows]
    if table.texts:
        lines.append(r"\midrule")
    for name, texts in table.texts.items():
        cells = [tex(texts.get(column, MISSING)) for column in table.columns]
        lines.append(" & ".join([tex(name), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", rf"\label{{table:{table.id}}}", r"\end{table}", ""])


def _latex_head(columns: list[tuple[str, ...]]) -> list[str]:
    lines = []
    for level in range(max(map(len, columns))):
        spans = groupby(columns, key=lambda column: column[: level + 1])
        cells = [(title[level], len(list(members))) for title, members in spans]
        words = [title if width == 1 else rf"\multicolumn{{{width}}}{{c}}{{{tex(title)}}}" for title, width in cells]
        lines.append(" & ".join(["", *(word if "\\" in word else tex(word) for word in words)]) + r" \\")
    return lines


def _latex_row(table: Table, row: tuple[str, str]) -> str:
    cells = []
    for column in table.columns:
        result = table.results.get((row, column))
        if result is None or result.mean is None:
            cells.append("--")
            continue
        spread = "" if result.std is None else rf"{{\footnotesize \textpm {result.std:.{table.digits}f}}}"
        text = f"{result.mean:.{table.digits}f}{spread}"
        cells.append(rf"\textbf{{{text}}}" if table.is_best(result) else text)
    return " & ".join([tex(row[1]), *cells]) + r" \\"


# --- CSV --------------------------------------------------------------------------------------------------------------

CSV_HEAD = [
    "table",
    "group",
    "row",
    "column",
    "ours",
    "ours_std",
    "n",
    "seeds",
    "paper",
    "paper_std",
    "difference",
    "z",
]


def as_csv(tables: list[Table]) -> str:
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for table in tables:
        for (group, row), column in ((row, column) for row in table.rows for column in table.columns):
            result = table.results.get(((group, row), column))
            if result is None:
                continue
            numbers = [result.mean, result.std, result.n, len(result.values), result.paper, result.paper_std]
            numbers += [result.difference, result.z] if table.comparable else [None, None]
            shown = ["" if number is None else number for number in numbers]
            writer.writerow([table.id, group, row, " / ".join(column), *shown])
        for name, texts in table.texts.items():
            for column, text in texts.items():
                cells = ["", "", "", "", text, "", "", ""] if name.endswith("published") else [text, *[""] * 7]
                writer.writerow([table.id, "", name, " / ".join(column), *cells])
    return file.getvalue()


# --- HTML -------------------------------------------------------------------------------------------------------------


def html(tables: list[Table], unavailable: list[Unavailable], facts: list[str], problems: list[str]) -> str:
    links = "".join(f'<a href="#{table.id}">{table.id}</a>' for table in tables)
    body = [
        "<h1>AdaB²N: the paper and our runs</h1>",
        *(f"<p>{escape(fact)}</p>" for fact in facts),
        '<p class="legend">A cell shows our mean ± standard deviation over seeds (<b>best of its method</b>), below it '
        "the number of seeds and the published number, their difference Δ and its z. "
        f'<span class="flag">⚠ |z| &gt; {NOTABLE:g}</span> marks a difference that chance hardly explains; '
        '<span class="missing">missing</span> means that no finished run stands behind the cell.</p>',
    ]
    if problems:
        body.append('<ul class="warnings">' + "".join(f"<li>{escape(text)}</li>" for text in problems) + "</ul>")
    body.append(f"<nav>{links}</nav>")
    body += [_html_table(table) for table in tables]
    if unavailable:
        body.append("<h2>Not yet available</h2><ul>")
        body += [f"<li>{escape(f'{plan.id}: {plan.title} (needs {plan.needs})')}</li>" for plan in unavailable]
        body.append("</ul>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>AdaB²N: the paper and our runs</title><style>{CSS}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _html_table(table: Table) -> str:
    lines = [f'<section id="{table.id}"><h2>{escape(f"{table.id}: {table.title}")}</h2>']
    if table.caption:
        lines.append(f'<p class="caption">In the paper: {escape(table.caption)}</p>')
    lines.append('<div class="scroll" tabindex="0"><table><thead>')
    depth = max(map(len, table.columns))
    for level in range(depth):
        spans = groupby(table.columns, key=lambda column: column[: level + 1])
        heads = [(title[level], len(list(members))) for title, members in spans]
        corner = f'<th rowspan="{depth}"></th>' if level == 0 else ""
        cells = "".join(f'<th colspan="{width}" scope="colgroup">{escape(title)}</th>' for title, width in heads)
        lines.append(f"<tr>{corner}{cells}</tr>")
    lines.append("</thead>")
    for group, rows in groupby(table.rows, key=lambda row: row[0]):
        rows = list(rows)
        lines.append("<tbody>")
        if needs_title(group, rows):
            lines.append(f'<tr><th class="group" colspan="{len(table.columns) + 1}">{escape(group)}</th></tr>')
        for row in rows:
            cells = "".join(_html_cell(table, row, column) for column in table.columns)
            lines.append(f'<tr><th scope="row">{escape(row[1])}</th>{cells}</tr>')
        lines.append("</tbody>")
    lines.append("<tbody>")
    for name, texts in table.texts.items():
        cells = "".join(f"<td>{escape(texts.get(column, MISSING))}</td>" for column in table.columns)
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return "".join([*lines, "</tbody></table></div>", note, "</section>"])


def _html_cell(table: Table, row, column) -> str:
    result = table.results.get((row, column))
    if result is None:
        return "<td></td>"
    details = [*comparison(result, table)]
    if result.mean is None:
        ours, style = f'<span class="missing">{MISSING}</span>', ""
    else:
        ours = escape(with_std(result.mean, result.std, table.digits))
        ours = f"<b>{ours}</b>" if table.is_best(result) else f"<span>{ours}</span>"
        details.insert(0, seeds(result))
        style = ' class="notable"' if is_notable(result, table) else ""
    flag = '<span class="flag">⚠</span> ' if style else ""
    small = "".join(f"<small>{escape(text)}</small>" for text in details)
    return f"<td{style}>{flag}{ours}{small}</td>"


# --- files ------------------------------------------------------------------------------------------------------------


def write(
    folder: Path, tables: list[Table], unavailable: list[Unavailable], facts: list[str], problems: list[str]
) -> Path:
    """Everything below `folder`; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)

    def put(name: str, text: str) -> None:
        (folder / name).write_text(text, encoding="utf-8")

    facts = [*facts, f"Written on {date.today().isoformat()}."]
    for table in tables:
        put(f"{table.id}.md", markdown(table))
        put(f"{table.id}.tex", latex(table))
        put(f"{table.id}.csv", as_csv([table]))
    warned = [f"- warning: {text}" for text in problems]
    listed = [f"- {plan.id}: {plan.title} (not yet available: needs {plan.needs})" for plan in unavailable]
    parts = ["# AdaB²N: the paper and our runs", *facts, *warned, *map(markdown, tables), *listed]
    put("report.md", "\n\n".join(parts) + "\n")
    put("report.csv", as_csv(tables))
    put("report.html", html(tables, unavailable, facts, problems))
    return folder / "report.html"
