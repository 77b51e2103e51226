"""What `report` gathers: tables, figures, verdicts, and where the numbers come from."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.reproduce import report as writing
from scripts.reproduce.claims import CLAIMS, judge
from scripts.reproduce.display import duration
from scripts.reproduce.plans import PLANS, Plan
from scripts.reproduce.request import set_up
from scripts.reproduce.results import Table, tabulate, warnings
from scripts.reproduce.runs import Runs
from scripts.reproduce.selection import Selection
from utils.errors import UsageError
from utils.run.sources import shortened


def write_report(arguments) -> int:
    plans, selection = set_up(arguments)
    preset = selection.runs.preset
    tables = [tabulate(plan, selection) for plan in plans]
    problems = [*untrusted(selection.runs), *warnings(tables)]
    cells = [result for table in tables for result in table.results.values()]
    filled = sum(result.complete for result in cells)
    scale = f"Preset {preset.name}: {preset.help}; seeds {', '.join(map(str, selection.seeds))}."
    facts = [
        f"{scale} {writing.SELECTION_WORDS[selection.mode]}",
        *provenance(tables),
        f"{filled} of {len(cells)} cells have all their runs.",
        *chosen_values(tables),
    ]
    if selection.mode == "test":
        for table in tables:
            table.note = f"{table.note} {writing.SELECTION_WORDS['test']}".strip()
    if not preset.comparable:
        orientation = "The published numbers stand there for orientation, and no difference to them is computed."
        facts.insert(1, f"{preset.differs} {orientation}")
    folder = Path(arguments.output or Path(arguments.results_path) / "reports" / preset.name)
    try:
        pictures = drawn(plans, selection, folder / "figures", scale)
        verdicts = [judge(claim, selection) for claim in CLAIMS.values()] if "all" in arguments.ids else []
        report = writing.Report(tables, facts, problems, verdicts, pictures, scale)
        page = writing.write(folder, report)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; set --output") from None
    for text in problems:
        print(f"warning: {text}", file=sys.stderr)
    print(f"{filled} of {len(cells)} cells complete, {len(pictures)} figures")
    print(f"report: {page}")
    return 0


def provenance(tables: list[Table]) -> list[str]:
    """When, where and with what the runs behind these tables were done."""
    records = list({name: record for table in tables for name, record in table.records.items()}.values())
    if not records:
        return []
    commits = sorted({(record["environment"]["commit"] or "unknown")[:12] for record in records})
    conditions = {(one["device"], one["torch"]) for record in records for one in record["conditions"]}
    where = "; ".join(f"{device} with torch {torch}" for device, torch in sorted(conditions))
    time = duration(sum(record["wall_seconds"] for record in records))
    days = sorted(record["date"][:10] for record in records)
    return [
        f"{len(records)} runs, {time} of computing, on {where}; code of commit {shortened(commits)}, from "
        f"{days[0]} to {days[-1]}."
    ]


def drawn(plans: list[Plan], selection: Selection, folder: Path, scale: str) -> list[writing.Picture]:
    """The figures that the runs allow, of the plans asked for and, with all of them, what the paper lacks."""
    from scripts.figures.catalogue import FIGURES, compares, draw, forest_of

    ids = {plan.id for plan in plans}
    further = {id for id in FIGURES if id not in PLANS} if {*PLANS} <= ids else set()
    wanted = [figure for id, figure in FIGURES.items() if id in ids | further]
    wanted += [forest_of(plan) for plan in plans if plan.id not in FIGURES and compares(plan, selection)]
    return [
        writing.Picture(figure.id, figure.title, f"{figure.title}. {scale}", folder)
        for figure in wanted
        if draw(figure, selection, folder)
    ]


def untrusted(runs: Runs) -> list[str]:
    return [f"{path} does not count: {reason}" for path, reason in runs.untrusted.items()]


def chosen_values(tables: list[Table]) -> list[str]:
    """With which kappa and lambda the runs of AdaB2N were done, outside the grid of Figure 3."""
    records = {name: record for table in tables if table.id != "fig3" for name, record in table.records.items()}
    configs = [record["config"] for record in records.values() if record["config"]["norm"] == "adab2n"]
    by_data: dict[str, dict[str, set[str]]] = {}
    for config in configs:
        place = f"{config['model']} with M = {config.get('buffer_size', 0)} in {config.get('n_tasks')} tasks"
        values = f"κ = {config['kappa']:g}, λ = {config['lambd']:g}"
        by_data.setdefault(config["dataset"], {}).setdefault(values, set()).add(place)
    lines = []
    for data, by_values in by_data.items():
        if len(by_values) == 1:
            lines.append(f"{next(iter(by_values))} throughout")
        else:
            lines.append("; ".join(f"{values} for {', '.join(sorted(places))}" for values, places in by_values.items()))
        lines[-1] = f"AdaB²N on {data}: {lines[-1]}."
    return lines
