"""The command `report`: read the finished runs of plans, and write tables, pages and figures about them."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import date
from itertools import chain
from pathlib import Path

from utils.files import reject_links
from utils.run.code_digest import shortened
from utils.studies.explorer import write_pages
from utils.studies.plans import PLANS, Plan
from utils.studies.presets import PRESETS
from utils.studies.render import Report, as_csv, latex, markdown, page_of_markdown
from utils.studies.request import set_up
from utils.studies.results import Table, tabulate, warnings
from utils.studies.selection import Selection
from utils.studies.verdicts import judge_all
from utils.tables import count_of, duration

TITLE = "AdaB²N: the paper and our runs"
ORIENTATION = "The published numbers are for orientation; no difference to them is computed."
SELECTION_TEXTS = {
    "fixed": "κ and λ are fixed: the framework's defaults, or those given.",
    "validation": "κ and λ were chosen on held-out training data, per data set, method and memory size.",
    "test": "κ and λ were chosen ON THE TEST SET, as the authors apparently did: the numbers of AdaB²N are too good.",
}


def write_report(arguments: Namespace) -> int:
    plans, selection = set_up(arguments)
    selection.runs.reject_damaged_records()
    preset = selection.runs.preset
    is_study = preset.name not in PRESETS  # one's own, which has nothing to do with the paper
    tables = [tabulate(plan, selection) for plan in plans]
    if selection.mode == "test":
        for table in tables:
            table.note = f"{table.note} {SELECTION_TEXTS['test']}".strip()
    cells = [result for table in tables for result in table.results.values()]
    filled = sum(result.complete for result in cells)
    seeds = ", ".join(map(str, selection.seeds))
    scale = f"Seeds {seeds}." if is_study else f"Preset {preset.name}: {preset.help}; seeds {seeds}."
    facts = [scale] if is_study else [f"{scale} {SELECTION_TEXTS[selection.mode]}"]
    if not is_study and not preset.comparable:
        has_published = any(result.paper is not None for result in cells)
        facts.append(f"{preset.differs} {ORIENTATION if has_published else ''}".strip())
    facts += provenance(tables)
    facts += [] if is_study else chosen_values(tables)
    facts += [f"{filled} of {len(cells)} cells have all their runs.", f"Written on {date.today().isoformat()}."]
    verdicts = judge_all(selection) if "all" in arguments.ids else []
    problems = warnings([*tables, *chain(*verdicts)], selection.runs)
    folder = Path(arguments.output or Path(arguments.results_path) / "reports" / preset.name)
    folder.mkdir(parents=True, exist_ok=True)
    reject_links(*folder.glob("*"))
    figures = draw_figures(plans, selection, folder / "figures")
    report = Report(preset.help if is_study else TITLE, tables, facts, problems, verdicts, figures, scale)
    files = {"report.md": page_of_markdown(report), "report.csv": as_csv(tables)}
    for table in tables:
        files |= {f"{table.id}.md": markdown(table, scale), f"{table.id}.tex": latex(table, scale)}
        files[f"{table.id}.csv"] = as_csv([table])
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    folders = selection.runs.finished_folders()
    if is_study:
        names = {name for table in tables for name in table.records}
        folders = {name: path for name, path in folders.items() if name in names}
    write_pages(report, folders, folder)
    for text in problems:
        print(f"warning: {text}", file=sys.stderr)
    counts = f"{count_of(len(folders), 'run')}, {count_of(len(figures), 'figure')}"
    print(f"{filled} of {len(cells)} cells complete, {counts}")
    print(f"report: {folder / 'index.html'}")
    return 0


def provenance(tables: list[Table]) -> list[str]:
    """Return when, where and with what the runs of these tables were done."""
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
    return [f"{count_of(len(records), 'run')}, {time} of computing, on {where}; {code}."]


def chosen_values(tables: list[Table]) -> list[str]:
    """Return where AdaB2N's runs have which kappa and lambda."""
    places: dict[str, set[str]] = {}  # by values, without the grid of Figure 3
    configs = [record["config"] for table in tables if table.id != "fig3" for record in table.records.values()]
    for config in (config for config in configs if config["norm"] == "adab2n"):
        place = f"{config['model']} on {config['dataset']} with M = {config.get('buffer_size', 0)}"
        places.setdefault(f"κ = {config['kappa']:g}, λ = {config['lambd']:g}", set()).add(place)
    return [f"AdaB²N with {values}: {', '.join(sorted(names))}." for values, names in places.items()]


def draw_figures(plans: Sequence[Plan], selection: Selection, folder: Path) -> dict[str, str]:
    """Draw the figures of these plans and, with all plans of the paper, the further ones; return titles by id.

    Those without runs are skipped.
    """
    from utils.figures.catalogue import FIGURES, curves_of, forest_of

    ids = {plan.id for plan in plans}
    further = {id for id in FIGURES if id not in PLANS} if {*PLANS} <= ids else set()
    wanted = [figure for id, figure in FIGURES.items() if id in ids | further]
    for plan in plans:
        if plan.id not in FIGURES and all(cell.baseline for cell in plan.cells(selection.runs.preset)):
            wanted.append(forest_of(plan))
    wanted += [curves_of(plan) for plan in plans if plan.x_axis]
    return {figure.id: figure.title for figure in wanted if figure.write(selection, folder)}
