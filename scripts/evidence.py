"""The project's own numbers, from the records in results/measured alone.

python -m scripts.evidence writes docs/evidence.md, docs/statistics.md and the marked parts of README and docs/runs.md,
and draws figures.
"""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from utils import console
from utils.cli import Parser
from utils.figures.catalogue import FIGURES
from utils.figures.style import save
from utils.figures.tabled import final_statistics
from utils.run.records import read_record
from utils.studies.claims import FAILS, HOLDS, OPEN, Verdict, judge_all
from utils.studies.compare import Paired, records_by_seed, values_by_seed
from utils.studies.confirm import CONFIRM, CONFIRMATORY_SEEDS, EXPLORATORY_SEEDS
from utils.studies.final_statistics import arms_with_statistics, page_values
from utils.studies.plans import ONLINE, PLANS, Comparison, Experiment, Plan
from utils.studies.presets import NARROW
from utils.studies.render import environment
from utils.studies.results import Result, Table, tabulate, warnings
from utils.studies.runs import MEASURED, Runs
from utils.studies.selection import Selection, required_runs
from utils.studies.study import STUDIES, read_study
from utils.tables import TITLES, markdown_table, markdown_text, mean_and_deviation

ROOT = Path(__file__).resolve().parents[1]
README, PAGE, RUNS = ROOT / "README.md", ROOT / "docs" / "evidence.md", ROOT / "docs" / "runs.md"
STATISTICS = ROOT / "docs" / "statistics.md"
BEGIN, END = "<!-- evidence: python -m scripts.evidence -->", "<!-- end of evidence -->"
EMPTY_DIR = "no-results"  # a results folder that does not exist: only kept records count
QUESTIONS = {  # a claim, what a user asks, and the answers if it holds and if the opposite does
    "class-il": ("AdaB²N or BN, each in the paper's forward?", "AdaB²N", "BN"),
    "cn": ("CN or BN?", "CN", "BN"),
    "bn-joint": ("Joint or separate forward for BN?", "joint", "separate"),
    "same-forward": ("AdaB²N or BN, both in a joint forward?", "AdaB²N", "BN"),
    "cn-learned": ("CN's affine parameters: learned or frozen?", "learned", "frozen"),
    "above-cn-learned": ("AdaB²N or CN with learned affine parameters?", "AdaB²N", "CN"),
}


def evidence(measured: Path = MEASURED) -> Selection:
    """Return the kept records as a selection with the exploratory seeds; raise UsageError if one is damaged."""
    runs = Runs(NARROW, EMPTY_DIR, measured=measured)
    runs.reject_damaged_records()
    return Selection("fixed", runs, EXPLORATORY_SEEDS)


def finished(selection: Selection) -> list[dict[str, Any]]:
    width = NARROW.flags["num_filters"]
    return [record for record in selection.runs.all_records() if record["config"].get("num_filters") == width]


def difference(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f}"


def number(result: Result | None) -> str:
    if result is None or not result.n:
        return "–"
    if result.cell.baseline is not None:
        return result.paired.text(1)
    spread = "" if result.std is None else f" ± {result.std:.1f}"
    paper = "" if result.paper is None else f"; paper {result.paper:.1f}"
    return f"{result.mean:.1f}{spread} (n = {result.n}{paper})"


def threads(records: list[dict[str, Any]]) -> str:
    """Return how many threads these runs had."""
    counts = {str(each.get("num_threads", "unknown")) for record in records for each in record["conditions"]}
    return "one thread" if counts == {"1"} else f"{' or '.join(sorted(counts))} threads"


def render(template: str, selection: Selection, **values: Any) -> str:
    env = environment()
    filters: dict[str, Any] = {
        "fill": lambda text: textwrap.fill(" ".join(text.split()), 120, break_on_hyphens=False),
        "hours": lambda records: f"{sum(record['wall_seconds'] for record in records) / 3600:.1f}",
        "text": markdown_text, "threads": threads, "difference": difference,
        "interval": lambda paired: paired.interval_text(1), "numbers": lambda paired: paired.text(1),
    }  # fmt: skip
    env.filters |= filters
    return env.get_template(template).render(records=finished(selection), **values).rstrip("\n") + "\n"


def readme_part(selection: Selection) -> str:
    """Return README's section."""
    verdicts, exploratory = zip(*judge_all(selection), strict=True)
    required, _ = required_runs([*CONFIRM.values()], selection)
    return render(
        "evidence_readme.md.j2", selection, counts=Counter(verdict.verdict for verdict in verdicts),
        required=len(required), done=sum(selection.runs.record(run) is not None for run in required.values()),
        started=sum(bool(verdict.started) for verdict in exploratory),
        above=sum(verdict.paired.is_above for verdict in exploratory),
        below=sum(verdict.paired.is_below for verdict in exploratory), controls=mnist_controls(selection),
    )  # fmt: skip


def mnist_controls(selection: Selection) -> dict[str, list[tuple[str, Paired]]]:
    """Return, by method, the differences on Permuted MNIST that tell the norm from the forward pass."""
    selection = replace(selection, seeds=CONFIRMATORY_SEEDS)
    cells = {cell.row: cell for cell in CONFIRM["confirm-mnist"].cells(NARROW)}
    arms = (("AdaB²N", "BN, separate"), ("BN, joint", "BN, separate"), ("AdaB²N", "BN, joint"))
    controls: dict[str, list[tuple[str, Paired]]] = {}
    for method in ("ER", "DER++"):
        for arm, baseline in arms:
            ours, theirs = (cells[f"{method} w/ {name}"] for name in (arm.replace("AdaB²N", "AdaB²N, joint"), baseline))
            comparison = Comparison(((1, ours.experiment), (-1, theirs.experiment)), ours.metric)
            paired = Paired(tuple(values_by_seed(comparison, selection).values()))
            controls.setdefault(method, []).append((f"{arm} − {baseline}".replace(",", ""), paired))
    return controls


def statement_rows(verdicts: list[Verdict]) -> list[tuple[Verdict, str, list[dict[str, Any]]]]:
    """Return the statements that have runs, each with the plan and the records of its runs."""
    rows = []
    for verdict in (verdict for verdict in verdicts if verdict.started):
        experiments = {experiment for comparison in verdict.comparisons for experiment in comparison.experiments}
        rows.append((verdict, plan_of(experiments), list(verdict.records.values())))
    return rows


def plan_of(experiments: set[Experiment]) -> str:
    """Return the first plan that has all these experiments, or its parts on their data sets."""
    data = {experiment.data for experiment in experiments}
    for plan in (*STUDIES.values(), *PLANS.values()):
        cells = list(plan.cells(NARROW))
        if experiments <= {experiment for cell in cells for experiment in cell.comparison.experiments}:
            whole = data == {cell.experiment.data for cell in cells}
            return plan.id if whole else " ".join(f"{plan.id}:{name}" for name in sorted(data))
    return "all"


def is_outside(paper: float | None, paired: Paired) -> bool:
    """Return whether the paper's difference lies outside our interval."""
    return paper is not None and paired.interval is not None and not paired.interval[0] <= paper <= paired.interval[1]


def page(selection: Selection) -> str:
    pairs = judge_all(selection)
    confirmatory, exploratory = ([pair[i] for pair in pairs] for i in (0, 1))
    by_id = {pair[0].id: pair for pair in pairs}
    plans = [(plan, selection) for plan in (*STUDIES.values(), PLANS["table2"], PLANS["table3"], *CONFIRM.values())]
    plans += own_plans(selection.runs.measured)
    tables = [tabulate(plan, of_plan) for plan, of_plan in plans]
    other_data = [line for _, of_plan in plans for line in of_plan.runs.on_other_data()]
    records = [read_record(path) for path in sorted(selection.runs.measured.glob("*/record.json"))]
    return render(
        "evidence_page.md.j2", selection,
        warnings=list(dict.fromkeys([*warnings([*tables, *chain(*pairs)], selection.runs), *other_data])),
        choices=[(question, answer(by_id[id][0], *answers), *by_id[id])
                 for id, (question, *answers) in QUESTIONS.items() if by_id[id][0].started or by_id[id][1].started],
        readings=[pair for id in ("table2", "table3") if (pair := readings(id, selection))],
        confirmatory=statement_rows(confirmatory), exploratory=statement_rows(exploratory),
        outside=[verdict for verdict in exploratory if is_outside(verdict.paper, verdict.paired)],
        missing=[verdict for verdict, other in pairs if not verdict.started and not other.started],
        verdicts_by_seeds={"Confirmatory seeds, 3 to 9": confirmatory, "Exploratory seeds, 0 to 2": exploratory},
        tables=[(table, text) for table in tables if (text := finished_part(table))],
        failures=[record for record in records if record and record["status"] != "finished"],
    )  # fmt: skip


def answer(verdict: Verdict, if_holds: str, if_opposite: str) -> str:
    """Return an answer to a user's question that is no stronger than the verdict."""
    if verdict.verdict == FAILS:
        return if_opposite if verdict.paired.is_below else OPEN
    return if_holds if verdict.verdict == HOLDS else verdict.verdict


def readings(id: str, selection: Selection) -> tuple[int, float, float] | None:
    """Return (rows, our mean distance to the paper with 20, with 10 tasks of CIFAR-100) of a table."""
    results = tabulate(PLANS[id], selection).results.values()
    gaps = {result.cell.experiment: result.difference for result in results if result.difference is not None}
    pairs = [(gaps[twenty], gap) for experiment, gap in gaps.items() if experiment.data == "cifar100-10"
             and (twenty := replace(experiment, data="cifar100")) in gaps]  # fmt: skip
    return (len(pairs), mean(pair[0] for pair in pairs), mean(pair[1] for pair in pairs)) if pairs else None


def finished_part(table: Table) -> str:
    """Return the rows and columns of a table that have runs."""
    results = {key: result for key, result in table.results.items() if result.n}
    rows = [row for row in table.rows if any(row == key[0] for key in results)]
    columns = [column for column in table.columns if any(column == key[1] for key in results)]
    lines = [(markdown_text(row[1]), *(number(results.get((row, column))) for column in columns)) for row in rows]
    head = ["", *(markdown_text(", ".join(column)) for column in columns)]
    return markdown_table(head, lines) if rows else ""


def own_plans(measured: Path) -> Iterator[tuple[Plan, Selection]]:
    """Yield the plans of `scripts/studies`, which have other networks and data."""
    for path in sorted((ROOT / "scripts" / "studies").glob("*.toml")):
        study = read_study(path)
        selection = Selection("fixed", Runs(study.preset(), EMPTY_DIR, measured=measured), study.seeds)
        yield from ((plan, selection) for plan in study.plans().values())


def common_commands(selection: Selection) -> str:
    """Return a table of commands with the minutes and accuracies of their kept runs, one line a command."""
    models = {"perm-mnist": ("er", "derpp"), "cifar10": ONLINE, "cifar100": ONLINE}
    lines, records = [], []
    for data, model, norm in ((d, m, n) for d, names in models.items() for m in names for n in ("bn", "adab2n")):
        experiment = Experiment(model, norm, data, NARROW.data[data].buffers[0])
        of_seeds = list(records_by_seed(experiment, selection).values())
        if not of_seeds:
            continue
        records += of_seeds
        width = of_seeds[0]["config"].get("num_filters")
        flags = {"model": model, "norm": norm, **NARROW.data[data].flags} | ({"num_filters": width} if width else {})
        minutes = sorted({round(record["wall_seconds"] / 60) for record in of_seeds})
        accuracies = [
            f"{TITLES[name]} {mean_and_deviation([record['results'][name]['metrics']['faa'] for record in of_seeds])}"
            for name in of_seeds[0]["results"]
        ]
        command = " ".join(f"--{name} {value}" for name, value in flags.items())
        span = " to ".join(map(str, minutes[:: max(len(minutes) - 1, 1)]))
        lines.append((f"`{command}`", span, ", ".join(accuracies), str(len(of_seeds))))
    title = f"Minutes on a shared machine with {threads(records)}, and final average accuracy, mean ± std over seeds:"
    return f"{title}\n\n{markdown_table(['`python main.py` with', 'minutes', 'accuracy, %', 'seeds'], lines)}"


def with_part(path: Path, part: str) -> str:
    """Return a file's text with another marked part."""
    before, rest = path.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n{part}\n{END}{rest.split(END)[1]}"


def expected_files() -> dict[Path, str]:
    """Return the files as the records have them."""
    selection = evidence()
    return {README: with_part(README, readme_part(selection)), RUNS: with_part(RUNS, common_commands(selection)),
            PAGE: page(selection),
            STATISTICS: render("statistics_page.md.j2", selection, **page_values(selection))}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    try:
        Parser(prog="python -m scripts.evidence", description=__doc__).parse_args(argv)
        for path, text in expected_files().items():
            path.write_text(text, encoding="utf-8")
        for name in ("published", "confounds"):
            save(partial(FIGURES[name].draw, evidence()), PAGE.parent, name, ["png"])
        save(partial(final_statistics, arms_with_statistics(evidence())), PAGE.parent, "final-statistics", ["png"])
    except console.ERRORS as error:
        return console.complain(error)
    return 0


if __name__ == "__main__":
    console.begin()
    sys.exit(console.end(main()))
