"""The project's own numbers, from the records in results/measured alone.

python -m scripts.evidence writes docs/evidence.md, docs/statistics.md and the marked parts of README and docs/runs.md,
and draws figures.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from utils import console
from utils.cli import Parser
from utils.config.registry import METRICS
from utils.figures.catalogue import COMPARISONS, FIGURES, curves_of
from utils.figures.style import save
from utils.figures.tabled import final_statistics
from utils.run.records import read_record
from utils.studies.claims import ABOVE
from utils.studies.compare import Paired, averaged, records_by_seed
from utils.studies.confirm import CONFIRM, CONFIRMATORY_SEEDS, EXPLORATORY_SEEDS
from utils.studies.final_statistics import arms_with_statistics, page_values
from utils.studies.plans import ONLINE, PLANS, Experiment, Plan
from utils.studies.presets import NARROW
from utils.studies.render import environment
from utils.studies.results import Result, Table, published_value, tabulate, warnings
from utils.studies.runs import MEASURED, Runs
from utils.studies.selection import Selection, required_runs
from utils.studies.study import read_study
from utils.studies.verdicts import BELOW, EQUIVALENT, NO_VERDICT, Verdict, judge_all
from utils.tables import TITLES, markdown_table, markdown_text, mean_and_deviation

ROOT = Path(__file__).resolve().parents[1]
README, PAGE, RUNS = ROOT / "README.md", ROOT / "docs" / "evidence.md", ROOT / "docs" / "runs.md"
STATISTICS, BOUNDARIES = ROOT / "docs" / "statistics.md", ROOT / "docs" / "boundaries.md"
BEGIN, END = "<!-- evidence: python -m scripts.evidence -->", "<!-- end of evidence -->"
SURVEY = (28.95, 29.69, 26.98, 28.24, 26.89)  # Class-IL accuracies of ER, by seed, as its authors logged them
EMPTY_DIR = "no-results"  # a results folder that does not exist: only kept records count
QUESTIONS = {  # what a user asks, the claims that answer it, the choice if they are above, and the choice otherwise
    "Current and replayed samples in one forward pass or in two, with BN and Domain-IL?":
        ({"Permuted MNIST": "mnist-joint"}, "one", "either"),
    "AdaB²N or BN, both in one forward pass, Domain-IL?": ({"Permuted MNIST": "mnist-same-forward"}, "AdaB²N", "BN"),
    "One forward pass or two, with BN on CIFAR?":
        ({"Class-IL": "bn-joint-class", "Task-IL": "bn-joint-task"}, "one", "two, as the released code does"),
    "AdaB²N or BN, both in one forward pass, on CIFAR?":
        ({"Class-IL": "same-forward-class", "Task-IL": "same-forward-task"}, "AdaB²N", "BN"),
    "AdaB²N or BN as released, on CIFAR?":
        ({"Class-IL": "adab2n-bn-class", "Task-IL": "adab2n-bn-task"}, "AdaB²N", "BN"),
    "CN or BN, on CIFAR?": ({"Class-IL": "cn-bn-class", "Task-IL": "cn-bn-task"}, "CN", "BN"),
}  # fmt: skip


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
    published = published_value(result.cell.comparison)
    paper = "" if published is None else f"; paper {published:.1f}"
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
        "text": markdown_text, "threads": threads, "difference": difference, "number": number,
        "numbers": lambda paired: paired.text(1), "spread": lambda paired: mean_and_deviation([*paired.differences]),
        "paper_text": paper_text,
    }  # fmt: skip
    env.filters |= filters
    return env.get_template(template).render(records=finished(selection), **values).rstrip("\n") + "\n"


def readme_parts(selection: Selection) -> list[str]:
    """Return README's summary and its section."""
    verdicts = {verdict.id: verdict for verdict, _ in judge_all(selection)}
    required, _ = required_runs([*CONFIRM.values()], selection)
    families = {name: Counter(verdict.conclusion for verdict in verdicts.values() if verdict.claim.is_ours == is_ours)
                for name, is_ours in (("paper", False), ("ours", True))}  # fmt: skip
    section = render(
        "evidence_readme.md.j2", selection, verdicts=verdicts, families=families, required=len(required),
        done=sum(selection.runs.record(run) is not None for run in required.values()),
    )  # fmt: skip
    return [render("evidence_summary.md.j2", selection, verdicts=verdicts), section]


def page(selection: Selection) -> str:
    pairs = judge_all(selection)
    by_id = {pair[0].id: pair for pair in pairs}
    mnist, *others = CONFIRM.values()
    cifar = Plan("confirm", "CIFAR", lambda preset: chain(*(plan.cells(preset) for plan in others)),
                 seeds=CONFIRMATORY_SEEDS)  # fmt: skip
    tables = [tabulate(plan, selection) for plan in (mnist, cifar)]
    records = [read_record(path) for path in sorted(selection.runs.measured.glob("*/record.json"))]
    have_runs = [pair for pair in pairs if pair[0].values or pair[1].values]
    return render(
        "evidence_page.md.j2", selection,
        warnings=warnings([*tables, *(replace(verdict, dropped={}) for verdict in chain(*pairs))], selection.runs),
        choices=[(question, [(place, answer(by_id[id][0], *answers), *by_id[id]) for place, id in ids.items()])
                 for question, (ids, *answers) in QUESTIONS.items()],
        readings=[pair for id in ("table2", "table3") if (pair := readings(id, selection))],
        families={title: verdict_table([pair for pair in have_runs if pair[0].claim.is_ours == is_ours])
                  for title, is_ours in (("The paper's statements", False), ("Our questions", True))},
        missing=[verdict for verdict, other in pairs if not verdict.values and not other.values],
        cells=cell_table([by_id[id][0] for ids in COMPARISONS.values() for id in ids if by_id[id][0].values]),
        survey=survey_values(), mnist={row: result for ((_, row), _), result in tables[0].results.items() if result.n},
        tables=[(table, text) for table in tables if (text := finished_part(table))],
        failures=[record for record in records if record and record["status"] != "finished"],
    )  # fmt: skip


def answer(verdict: Verdict, if_above: str, otherwise: str) -> str:
    """Return an answer to a user's question that is no stronger than the verdict."""
    is_decided = verdict.conclusion != NO_VERDICT and {ABOVE, BELOW, EQUIVALENT} & {*verdict.findings}
    return (if_above if ABOVE in verdict.findings else otherwise) if is_decided else f"undecided; use {otherwise}"


def verdict_table(pairs: list[tuple[Verdict, Verdict]]) -> str:
    """Return a row for every statement, and rows for its methods where they differ."""
    head = ["statement", "conclusion", "seeds 3 to 9", "paper", "p", "cells +, −, all", "seeds 0 to 2, alone"]
    lines: list[Sequence[str]] = []
    for verdict, other in pairs:
        signs = [sum(value > 0 for value in verdict.means), sum(value < 0 for value in verdict.means)]
        alone = f"{other.difference.text(1)}: {other.verdict}" if other.values else "–"
        reason = "" if verdict.conclusion == NO_VERDICT else verdict.verdict.removeprefix(verdict.conclusion)
        conclusion = f"**{verdict.conclusion}**{': ' if reason and reason[0] != ' ' else ''}{reason}"
        lines.append((
            verdict.claim.statement, conclusion, verdict.difference.text(1),
            paper_text((verdict if verdict.values else other).published),
            "–" if verdict.corrected_p is None else f"{verdict.corrected_p:.2g}",
            ", ".join(map(str, [*signs, len(verdict.comparisons)])), alone,
        ))  # fmt: skip
        parts = [part.by_method for part in (verdict, other) if verdict.differs_by_method or other.differs_by_method]
        for method in dict.fromkeys(chain(*parts)):
            ours, theirs = (part.get(method) for part in parts)
            paper = paper_text(next(part.published for part in (ours, theirs) if part))
            numbers = [part.difference.text(1) if part else "–" for part in (ours, theirs)]
            lines.append((f"– {method}", "", numbers[0], paper, "", "", numbers[1]))
    return markdown_table(head, lines)


def paper_text(published: Paired | None) -> str:
    """Return the paper's difference, with the interval of Welch's test if it has standard deviations."""
    if published is None or published.mean is None:
        return "–"
    if published.interval is None:
        return f"{published.mean:+.1f}"
    verdict = "above" if published.is_above else "below" if published.is_below else "inconclusive"
    return f"{published.mean:+.1f} {published.interval_text(1)}, {verdict}"


def cell_table(verdicts: list[Verdict]) -> str:
    """Return the differences of all cells: a row for every statement, a column for every cell."""
    names = list(dict.fromkeys(chain(*(verdict.values for verdict in verdicts))))
    lines = [(each.claim.statement, *(each.cells.get(name, Paired()).text(1) for name in names)) for each in verdicts]
    return markdown_table(["", *names], lines) if names else ""


def readings(id: str, selection: Selection) -> tuple[int, float, float] | None:
    """Return (rows, our mean distance to the paper with 20, with 10 tasks of CIFAR-100) of a table, by all seeds."""
    selection = replace(selection, seeds=(*EXPLORATORY_SEEDS, *CONFIRMATORY_SEEDS))
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
    title = f"Minutes on a shared machine with {threads(records)}, and final average accuracy"
    table = markdown_table(["`python main.py` with", "minutes", "accuracy, %", "seeds"], lines)
    return f"{title}, mean ± std over seeds 0 to 2:\n\n{table}"


def kept_study(name: str) -> tuple[Plan, Plan, Selection]:
    """Return a study in scripts/studies, its differences to BN, and its kept runs."""
    study = read_study(ROOT / "scripts" / "studies" / f"{name}.toml")
    runs = Runs(study.preset(), EMPTY_DIR, measured=MEASURED)
    accuracies, differences = study.plans().values()
    return accuracies, differences, Selection("fixed", runs, study.seeds)


def survey_values() -> dict[str, Any]:
    """Return final average accuracies of ER by the survey and by us, and what other norms add to ours."""
    *plans, selection = kept_study("survey_er")
    accuracies, gains = (
        {row: result for ((_, row), column), result in tabulate(plan, selection).results.items()
         if column[-1] == METRICS.get("faa").help and result.n}
        for plan in plans
    )  # fmt: skip
    ours = accuracies["BN"].paired if "BN" in accuracies else Paired()
    return {"ours": ours, "theirs": Paired(SURVEY), "difference": ours.minus(Paired(SURVEY)), "gains": gains}


def boundaries_part() -> str:
    """Return the accuracies of the study of boundaries by strength, and the mean differences to BN."""
    *plans, selection = kept_study("boundaries")
    accuracies, differences = (tabulate(plan, selection).results for plan in plans)
    panels: dict[tuple[str, str], dict[str, dict[str, Result]]] = {}  # by kind and metric: by row, by strength
    gains: dict[tuple[str, str], list[dict[int, float]]] = {}  # by row and metric
    for ((kind, row), (strength, _, metric)), result in accuracies.items():
        panels.setdefault((kind, metric), {}).setdefault(row, {})[strength.partition(" = ")[2]] = result
    for ((_, row), (_, _, metric)), result in differences.items():
        known = {seed: value for seed, value in result.values.items() if value is not None}
        gains.setdefault((row, metric), []).append(known)
    texts, of_adab2n = [], []
    for (kind, metric), rows in panels.items():
        lines = []
        for row, results in rows.items():
            gain, arm = averaged(gains.get((row, metric), [])), row.removeprefix(f"{kind} w/ ")
            of_adab2n += [gain] if arm.startswith("AdaB²N") else []
            lines.append((arm, *(f"{result.mean:.1f}" for result in results.values()), gain.text(1)))
        head = [f"`{kind}`, {metric}, by strength", *next(iter(rows.values())), "minus BN"]
        texts.append(markdown_table(head, lines))
    above, below = sum(gain.is_above for gain in of_adab2n), sum(gain.is_below for gain in of_adab2n)
    text = f"""Accuracy in percent, mean over {len(selection.seeds)} seeds. The last column is the mean difference to BN
        over all strengths, with its 95 % interval. By these intervals, AdaB²N is above BN in {above} of
        {len(of_adab2n)} cases and below it in {below}."""
    return "\n".join([f"{textwrap.fill(' '.join(text.split()), 120)}\n", *texts])


def with_parts(path: Path, *parts: str) -> str:
    """Return a file's text with other marked parts."""
    before, *pieces = path.read_text(encoding="utf-8").split(BEGIN)
    rest = (piece.split(END)[1] for piece in pieces)
    return before + "".join(f"{BEGIN}\n{part}\n{END}{text}" for part, text in zip(parts, rest, strict=True))


def expected_files() -> dict[Path, str]:
    """Return the files as the records have them."""
    selection = evidence()
    return {README: with_parts(README, *readme_parts(selection)), RUNS: with_parts(RUNS, common_commands(selection)),
            PAGE: page(selection), BOUNDARIES: with_parts(BOUNDARIES, boundaries_part()),
            STATISTICS: render("statistics_page.md.j2", selection, **page_values(selection))}  # fmt: skip


@console.reporting_errors
def main(argv: list[str] | None = None) -> int:
    Parser(prog="python -m scripts.evidence", description=__doc__).parse_args(argv)
    for path, text in expected_files().items():
        path.write_text(text, encoding="utf-8")
    for name in ("published", "confounds"):
        save(partial(FIGURES[name].draw, evidence()), PAGE.parent, name, ["png"])
    plan, _, study_runs = kept_study("boundaries")
    save(partial(curves_of(plan).draw, study_runs), PAGE.parent, "boundaries", ["png"])
    save(partial(final_statistics, arms_with_statistics(evidence())), PAGE.parent, "final-statistics", ["png"])
    return 0


if __name__ == "__main__":
    console.run_command(main)
