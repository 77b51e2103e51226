"""The command `report`: tables and figures as one HTML page, Markdown and LaTeX, and all numbers as CSV."""

from __future__ import annotations

import base64
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache, partial
from html import escape
from itertools import chain, starmap
from pathlib import Path
from typing import Any

import pandas

from utils.errors import UsageError
from utils.files import reject_links
from utils.packages import import_or_usage_error
from utils.run.code_digest import shortened
from utils.studies.claims import HEAD, Verdict, judge_all, words
from utils.studies.plans import METHODS, PLANS, SETTINGS, Plan, title_of
from utils.studies.request import set_up
from utils.studies.results import NOTABLE, Result, Table, tabulate, warnings
from utils.studies.selection import Selection
from utils.tables import duration, markdown_table, markdown_text

MISSING = "missing"
TITLE = "AdaB²N: the paper and our runs"
CLAIMS_TITLE = "What the paper says, and what these runs say of it"
TEMPLATES = Path(__file__).with_name("templates")
SELECTION_TEXTS = {
    "fixed": "κ and λ are fixed: the framework's defaults, or those given.",
    "validation": "κ and λ were chosen on held-out training data, per data set, method and memory size.",
    "test": "κ and λ were chosen ON THE TEST SET, as the authors apparently did: the numbers of AdaB²N are too good.",
}


@dataclass(frozen=True)
class Report:
    """The contents of a report; every part may be empty."""

    tables: list[Table]
    facts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    verdicts: list[tuple[Verdict, Verdict]] = field(default_factory=list)  # of confirmatory and of other seeds
    pictures: list[dict[str, str]] = field(default_factory=list)  # id, title, caption, light and dark in base64
    scale: str = ""  # preset and seeds, for captions


# --- cells ------------------------------------------------------------------------------------------------------------


def with_std(mean: float | None, std: float | None) -> str:
    if mean is None:
        return MISSING
    return f"{mean:.2f}" + ("" if std is None else f" ± {std:.2f}")


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


def markdown_cell(result: Result, table: Table) -> str:
    bold = "**" if table.is_best(result) else ""
    flag = " ⚠" if is_notable(result, table) else ""
    return f"{bold}{with_std(result.mean, result.std)}{bold}{flag} ({'; '.join(details(result, table))})"


def latex_cell(result: Result, table: Table) -> str:
    if result.mean is None:
        return "--"
    text = f"{result.mean:.2f}" + ("" if result.std is None else rf"{{\footnotesize \textpm {result.std:.2f}}}")
    return rf"\textbf{{{text}}}" if table.is_best(result) else text


def html_cell(result: Result, table: Table, folder: Path) -> str:
    """Return a cell with links to its records, which are relative to `folder`."""
    kind = "missing" if result.mean is None else "best" if table.is_best(result) else ""
    flag = '<span class="flag">⚠</span> ' if is_notable(result, table) else ""
    small = "".join(f"<small>{text}</small>" for text in details(result, table))
    links = [f'<a href="{escape(os.path.relpath(path, folder))}" title="seed {seed}">{result.values[seed]:.2f}</a>'
             for seed, path in result.paths.items()]  # fmt: skip
    seeds = f'<small class="seeds">{" ".join(links)}</small>' if links else ""
    return f'{flag}<span class="{kind}">{with_std(result.mean, result.std)}</span>{small}{seeds}'


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
    """Return one line per cell, numbers as numbers; of tables without cells, the texts and their numbers."""
    rows = [csv_row(table, result) for table in tables for result in table.results.values()]
    texts = [{"table": table.id, "row": row, "column": " / ".join(column), "text": text}
             | table.numbers.get((row, column), {})
             for table in tables for row, texts in table.texts.items() for column, text in texts.items()]  # fmt: skip
    frame = pandas.DataFrame(rows).astype({"memory": "Int64"}) if rows else pandas.DataFrame(texts)
    return frame.to_csv(index=False, lineterminator="\n")


def csv_row(table: Table, result: Result) -> dict[str, Any]:
    cell, experiment, comparable = result.cell, result.cell.experiment, table.preset.comparable
    return {
        "table": table.id, "row": cell.row, "column": " / ".join(cell.column),
        "method": METHODS.get(experiment.model, experiment.model), "norm": title_of(experiment.norm),
        "dataset": table.preset.data[experiment.data].title, "memory": experiment.buffer,
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
    verdicts = pandas.DataFrame(starmap(words, report.verdicts), columns=HEAD).set_index(HEAD[0])
    cell = partial(html_cell, folder=folder)
    return environment().get_template("report.html.j2").render(
        report=report, title=TITLE, claims_title=CLAIMS_TITLE, css=(TEMPLATES / "report.css").read_text(),
        tables=[(table, frame_of(table, cell, escape).to_html(escape=False, border=0)) for table in report.tables],
        ids=[table.id for table in report.tables], verdicts=verdicts.to_html(border=0),
        comparable=any(table.preset.comparable for table in report.tables), notable=f"{NOTABLE:g}",
        has_paper=any(result.paper is not None for result in results),
        has_missing=any(result.mean is None for result in results),
    )  # fmt: skip


def page_of_markdown(report: Report) -> str:
    parts = [f"# {TITLE}\n", *(f"{markdown_text(fact)}\n" for fact in report.facts)]
    parts += [f"- warning: {markdown_text(text)}\n" for text in report.problems]
    if report.verdicts:
        parts += [f"## {CLAIMS_TITLE}\n", markdown_table(HEAD, starmap(words, report.verdicts))]
    return "\n".join([*parts, *(markdown(table, report.scale) for table in report.tables)])


# --- the command ------------------------------------------------------------------------------------------------------


def write_report(arguments: Namespace) -> int:
    plans, selection = set_up(arguments)
    selection.runs.reject_damaged_records()
    preset = selection.runs.preset
    tables = [tabulate(plan, selection) for plan in plans]
    if selection.mode == "test":
        for table in tables:
            table.note = f"{table.note} {SELECTION_TEXTS['test']}".strip()
    cells = [result for table in tables for result in table.results.values()]
    filled = sum(result.complete for result in cells)
    scale = f"Preset {preset.name}: {preset.help}; seeds {', '.join(map(str, selection.seeds))}."
    orientation = f"{preset.differs} The published numbers are for orientation; no difference to them is computed."
    facts = [
        f"{scale} {SELECTION_TEXTS[selection.mode]}",
        *([] if preset.comparable else [orientation]),
        *provenance(tables),
        f"{filled} of {len(cells)} cells have all their runs.",
        f"Written on {date.today().isoformat()}.",
    ]
    verdicts = judge_all(selection) if "all" in arguments.ids else []
    problems = warnings([*tables, *chain(*verdicts)], selection.runs)
    folder = Path(arguments.output or Path(arguments.results_path) / "reports" / preset.name)
    folder.mkdir(parents=True, exist_ok=True)
    reject_links(*folder.glob("*"))
    if arguments.ids[0].endswith(".toml"):
        note_study(Path(arguments.ids[0]), folder)
    pictures = draw_figures(plans, selection, folder / "figures", scale)
    report = Report(tables, facts, problems, verdicts, pictures, scale)
    files = {"report.md": page_of_markdown(report), "report.csv": as_csv(tables), "report.html": html(report, folder)}
    for table in tables:
        files |= {f"{table.id}.md": markdown(table, scale), f"{table.id}.tex": latex(table, scale)}
        files[f"{table.id}.csv"] = as_csv([table])
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    for text in problems:
        print(f"warning: {text}", file=sys.stderr)
    print(f"{filled} of {len(cells)} cells complete, {len(pictures)} figures")
    print(f"report: {folder / 'report.html'}")
    return 0


def note_study(path: Path, folder: Path) -> None:
    """Write down whose report the folder has; raise UsageError if it has that of another study of the same name."""
    note = folder / "study.txt"
    if note.exists() and (other := Path(note.read_text().strip())) != path.resolve() and other.exists():
        raise UsageError(f"{folder} has the report of {other}; set --output, or rename {path}")
    note.write_text(f"{path.resolve()}\n")


def provenance(tables: list[Table]) -> list[str]:
    """Return when, where and with what the runs of these tables were done, and the kappa and lambda of AdaB2N's."""
    records = {name: record for table in tables for name, record in table.records.items()}.values()
    if not records:
        return []
    commits = sorted({(record["environment"]["commit"] or "unknown")[:12] for record in records})
    conditions = {tuple(part.get(name, "unknown") for name in ("device", "torch"))
                  for record in records for part in record["conditions"]}  # fmt: skip
    where = "; ".join(f"{device} with torch {torch}" for device, torch in sorted(conditions))
    time = duration(sum(record["wall_seconds"] for record in records))
    days = sorted(record["date"][:10] for record in records)
    code = f"code of commit {shortened(commits)}, from {days[0]} to {days[-1]}"
    facts = [f"{len(records)} runs, {time} of computing, on {where}; {code}."]
    places: dict[str, set[str]] = {}  # by values, without the grid of Figure 3
    configs = [record["config"] for table in tables if table.id != "fig3" for record in table.records.values()]
    for config in (config for config in configs if config["norm"] == "adab2n"):
        place = f"{config['model']} on {config['dataset']} with M = {config.get('buffer_size', 0)}"
        places.setdefault(f"κ = {config['kappa']:g}, λ = {config['lambd']:g}", set()).add(place)
    return facts + [f"AdaB²N with {values}: {', '.join(sorted(names))}." for values, names in places.items()]


def draw_figures(plans: Sequence[Plan], selection: Selection, folder: Path, scale: str) -> list[dict[str, str]]:
    """Draw the figures of these plans and, with all plans of the paper, the further ones; skip those without runs."""
    from utils.figures.catalogue import FIGURES, compares, draw, forest_of

    ids = {plan.id for plan in plans}
    further = {id for id in FIGURES if id not in PLANS} if {*PLANS} <= ids else set()
    wanted = [figure for id, figure in FIGURES.items() if id in ids | further]
    wanted += [forest_of(plan) for plan in plans if plan.id not in FIGURES and compares(plan, selection)]
    pictures = []
    for figure in (figure for figure in wanted if draw(figure, selection, folder)):
        files = (folder / f"{figure.id}{suffix}.svg" for suffix in ("", "-dark"))
        light, dark = (base64.b64encode(file.read_bytes()).decode() for file in files)
        caption = f"{figure.title}. {scale}"
        pictures.append({"id": figure.id, "title": figure.title, "caption": caption, "light": light, "dark": dark})
    return pictures
