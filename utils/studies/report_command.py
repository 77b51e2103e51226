"""The command `report`: gather tables, figures, verdicts and where the numbers come from, and write them."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from utils.errors import UsageError
from utils.run.code_digest import shortened
from utils.studies import render
from utils.studies.claims import CLAIMS, judge
from utils.studies.display import duration
from utils.studies.plans import PLANS, Plan
from utils.studies.request import set_up
from utils.studies.results import Table, tabulate, warnings
from utils.studies.runs import Runs
from utils.studies.selection import Selection

SELECTION_TEXTS = {
    "fixed": "κ and λ are fixed: the framework's defaults, or those given.",
    "validation": "κ and λ were chosen on held-out training data, per data set, method and memory size.",
    "test": "κ and λ were chosen ON THE TEST SET, as the authors apparently did: the numbers of AdaB²N are too good.",
}


def write_report(arguments: Namespace) -> int:
    plans, selection = set_up(arguments)
    preset = selection.runs.preset
    tables = [tabulate(plan, selection) for plan in plans]
    problems = [*untrusted(selection.runs), *warnings(tables)]
    cells = [result for table in tables for result in table.results.values()]
    filled = sum(result.complete for result in cells)
    scale = f"Preset {preset.name}: {preset.help}; seeds {', '.join(map(str, selection.seeds))}."
    facts = [
        f"{scale} {SELECTION_TEXTS[selection.mode]}",
        *provenance(tables),
        f"{filled} of {len(cells)} cells have all their runs.",
        *chosen_values(tables),
    ]
    if selection.mode == "test":
        for table in tables:
            table.note = f"{table.note} {SELECTION_TEXTS['test']}".strip()
    if not preset.comparable:
        facts.insert(
            1, f"{preset.differs} The published numbers are for orientation; no difference to them is computed."
        )
    folder = Path(arguments.output or Path(arguments.results_path) / "reports" / preset.name)
    try:
        pictures = draw_figures(plans, selection, folder / "figures", scale)
        verdicts = [judge(claim, selection) for claim in CLAIMS.values()] if "all" in arguments.ids else []
        page = render.write(folder, render.Report(tables, facts, problems, verdicts, pictures, scale))
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; set --output") from None
    for text in problems:
        print(f"warning: {text}", file=sys.stderr)
    print(f"{filled} of {len(cells)} cells complete, {len(pictures)} figures")
    print(f"report: {page}")
    return 0


def provenance(tables: list[Table]) -> list[str]:
    """Return when, where and with what the runs of these tables were done."""
    records = list({name: record for table in tables for name, record in table.records.items()}.values())
    if not records:
        return []
    commits = sorted({(record["environment"]["commit"] or "unknown")[:12] for record in records})
    conditions = {(part["device"], part["torch"]) for record in records for part in record["conditions"]}
    where = "; ".join(f"{device} with torch {torch}" for device, torch in sorted(conditions))
    time = duration(sum(record["wall_seconds"] for record in records))
    days = sorted(record["date"][:10] for record in records)
    return [
        f"{len(records)} runs, {time} of computing, on {where}; code of commit {shortened(commits)}, from "
        f"{days[0]} to {days[-1]}."
    ]


def draw_figures(plans: list[Plan], selection: Selection, folder: Path, scale: str) -> list[render.Picture]:
    """Draw the figures of these plans and, with all plans of the paper, the further ones; skip those without runs."""
    from utils.figures.catalogue import FIGURES, compares, draw, forest_of

    ids = {plan.id for plan in plans}
    further = {id for id in FIGURES if id not in PLANS} if {*PLANS} <= ids else set()
    wanted = [figure for id, figure in FIGURES.items() if id in ids | further]
    wanted += [forest_of(plan) for plan in plans if plan.id not in FIGURES and compares(plan, selection)]
    return [
        render.Picture(figure.id, figure.title, f"{figure.title}. {scale}", folder)
        for figure in wanted
        if draw(figure, selection, folder)
    ]


def untrusted(runs: Runs) -> list[str]:
    return [f"{path} does not count: {reason}" for path, reason in runs.untrusted.items()]


def chosen_values(tables: list[Table]) -> list[str]:
    """Return the kappa and lambda of AdaB2N's runs by data set, without the grid of Figure 3."""
    records = {name: record for table in tables if table.id != "fig3" for name, record in table.records.items()}
    places: dict[str, dict[str, set[str]]] = {}  # by data set, and by values
    for config in (record["config"] for record in records.values() if record["config"]["norm"] == "adab2n"):
        place = f"{config['model']} with M = {config.get('buffer_size', 0)} in {config.get('n_tasks')} tasks"
        values = f"κ = {config['kappa']:g}, λ = {config['lambd']:g}"
        places.setdefault(config["dataset"], {}).setdefault(values, set()).add(place)
    texts = {
        data: [f"{values} for {', '.join(sorted(names))}" for values, names in by_values.items()]
        if len(by_values) > 1
        else [f"{next(iter(by_values))} throughout"]
        for data, by_values in places.items()
    }
    return [f"AdaB²N on {data}: {'; '.join(parts)}." for data, parts in texts.items()]
