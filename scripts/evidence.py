"""The project's own numbers, from the records in results/measured alone: README's table and docs/evidence.md.

python -m scripts.evidence            writes both, and draws README's figure
python -m scripts.evidence --check    exit code 1 where they are not what the records say
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean

from scripts.command_line import Parser
from scripts.reproduce.claims import CLAIMS, FAILS, HOLDS, NO_RUNS, OPEN, Difference, Verdict, judge
from scripts.reproduce.own_study import read_study
from scripts.reproduce.paired import Paired
from scripts.reproduce.plans import PLANS, Experiment, Plan
from scripts.reproduce.presets import NARROW
from scripts.reproduce.results import Result, published, tabulate
from scripts.reproduce.runs import MEASURED, Runs
from scripts.reproduce.selection import Selection
from scripts.reproduce.studies import STUDIES
from utils import process
from utils.errors import UsageError
from utils.files import write_atomically
from utils.run.records import read_record

ROOT = Path(__file__).resolve().parents[1]
README, PAGE = ROOT / "README.md", ROOT / "docs" / "evidence.md"
BEGIN, END = "<!-- evidence: python -m scripts.evidence -->", "<!-- end of evidence -->"
NOWHERE = "no-results"  # a results folder that is not there: only records that are kept count
SEEDS = tuple(range(5))


def evidence(measured: Path = MEASURED) -> Selection:
    return Selection("fixed", Runs(NARROW, NOWHERE, measured=measured), SEEDS)


# --- words ------------------------------------------------------------------------------------------------------------


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def filled(text: str) -> str:
    """A paragraph."""
    return textwrap.fill(text, 120, break_on_hyphens=False) + "\n"


def difference(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f}"


def interval(paired: Paired) -> str:
    return "–" if paired.interval is None else "[{:+.1f}, {:+.1f}]".format(*paired.interval)


def hours(records: Iterable[dict]) -> str:
    return f"{sum(record['wall_seconds'] for record in records) / 3600:.1f}"


# --- what the paper has -----------------------------------------------------------------------------------------------


@cache
def published_cells() -> dict[tuple, float]:
    """By experiment and metric: accuracies and forgetting."""
    found = {}
    for id in ("table2", "table3", "table4", "table8", "table11"):
        for cell in PLANS[id].cells(NARROW):
            table, row, column = cell.published
            if value := published(table).get((row, column), ("", ""))[0]:
                found[cell.experiment, cell.metric] = float(value)
    return found


def published_difference(cell: Difference) -> float | None:
    values = [published_cells().get((experiment, cell.metric)) for _, experiment in cell.terms]
    if None in values:
        return None
    return sum(sign * value for (sign, _), value in zip(cell.terms, values, strict=True))


def judged_cells(verdict: Verdict) -> list[Difference]:
    """Those whose mean the verdict is of."""
    return [cell for cell in verdict.claim.cells(NARROW) if cell.name in verdict.cells]


def in_the_paper(verdict: Verdict) -> float | None:
    """The published mean over the cells that have runs here."""
    values = [published_difference(cell) for cell in judged_cells(verdict)]
    return mean(values) if values and None not in values else None


# --- README -----------------------------------------------------------------------------------------------------------


def readme_part(selection: Selection) -> str:
    verdicts = [judge(claim, selection) for claim in CLAIMS.values()]
    judged = [verdict for verdict in verdicts if verdict.verdict != NO_RUNS]
    silent = [verdict.claim.statement for verdict in verdicts if verdict.verdict == NO_RUNS]
    counts = Counter(verdict.verdict for verdict in verdicts)
    head = ("difference in points", "paper", "ours", "95 % interval", "n", "verdict", "runs of", "hours")
    return "\n".join(
        [
            filled(
                f"Of {len(verdicts)} statements, the paper's and questions of ours, {counts[HOLDS]} **hold** in the "
                f"runs so far, {counts[FAILS]} **do not**, {counts[OPEN]} **cannot be told**, {counts[NO_RUNS]} have "
                "no runs."
            ),
            about(selection),
            markdown(head, (readme_row(verdict, selection) for verdict in judged)),
            filled(
                "The runs of a row: `python -m scripts.reproduce run PLAN --preset narrow`; rows share runs, and so "
                "their hours. `claims` in place of `run PLAN` prints the verdicts."
            ),
            *outside(judged),
            *listed("**Did not reproduce:**", judged, FAILS),
            *listed("**Cannot be told from these runs:**", judged, OPEN),
            filled(f"**No runs at this scale:** {'; '.join(silent)}.") if silent else "",
        ]
    )


def about(selection: Selection) -> str:
    records = finished(selection)
    return filled(
        f"{len(records)} runs, one thread each, {hours(records)} hours on the clock in all, beside other work (alone "
        "on a core, a run takes six to fourteen minutes): everything as the paper's text has it (data, streams, "
        "settings, class orders; Split CIFAR-100 in 20 tasks, which are 10 in its code) but the ResNet-18, of 16 "
        "filters instead of 64 and with fewer groups in proportion, and κ, λ and `ada_t0`, which the paper does not "
        "publish ([docs/defaults.md](docs/defaults.md)). A row is a difference of final average accuracies, or of "
        "forgetting where it says so, paired by seed and averaged over its cells; n is the number of seeds, the "
        "interval that of a t-test. The paper's column is for orientation: its network is wider."
    )


def readme_row(verdict: Verdict, selection: Selection) -> tuple[str, ...]:
    paired, experiments = verdict.paired, compared(verdict)
    return (
        f"{verdict.claim.statement} ({verdict.share} cells)", difference(in_the_paper(verdict)),
        difference(paired.mean), interval(paired), str(paired.n), f"**{verdict.verdict}**",
        f"`{plan_of(experiments)}`", hours(records_of(experiments, selection)),
    )  # fmt: skip


def compared(verdict: Verdict) -> set[Experiment]:
    return {experiment for cell in judged_cells(verdict) for _, experiment in cell.terms}


def plan_of(experiments: set[Experiment]) -> str:
    """The first plan that has them all, or its parts on their data sets."""
    wanted = {experiment.data for experiment in experiments}
    for plan in (*STUDIES.values(), *PLANS.values()):
        cells = list(plan.cells(NARROW))
        if experiments <= {cell.experiment for cell in cells} | {cell.over for cell in cells}:
            whole = wanted == {cell.experiment.data for cell in cells}
            return plan.id if whole else " ".join(f"{plan.id}:{data}" for data in sorted(wanted))
    return "all"


def records_of(experiments: set[Experiment], selection: Selection) -> Iterator[dict]:
    for experiment in experiments:
        found = (selection.runs.record(run) for run in selection.final(experiment) or ())
        yield from (record for record in found if record is not None)


def outside(verdicts: list[Verdict]) -> list[str]:
    """Where the paper's difference is none that ours could be, whatever the verdict."""
    found = []
    for verdict in verdicts:
        paper, reach = in_the_paper(verdict), verdict.paired.interval
        if paper is not None and reach is not None and not reach[0] <= paper <= reach[1]:
            found.append(f"- {verdict.claim.statement}: {difference(paper)}, ours {numbers(verdict.paired)}")
    return ["**The paper's difference lies outside our interval:**", "", *found, ""] if found else []


def listed(title: str, verdicts: list[Verdict], kind: str) -> list[str]:
    found = [f"- {one.claim.statement}: {why(one)}" for one in verdicts if one.verdict == kind]
    return [title, "", *found, ""] if found else []


def why(verdict: Verdict) -> str:
    if verdict.paired.n < 2:
        return "one seed" if verdict.paired.n else "no seed in common"
    if verdict.refuting and not verdict.paired.is_below:
        return f"not in {'; '.join(verdict.refuting)}"
    against = [f"{numbers(cell)} in {name}" for name, cell in verdict.started.items() if cell.mean <= 0]
    if verdict.paired.is_above and against:
        return f"{numbers(verdict.paired)}, but {'; '.join(against)}"
    return numbers(verdict.paired)


# --- the page ---------------------------------------------------------------------------------------------------------

OPENING = """# Evidence: what reproduces, and what follows

Made by `python -m scripts.evidence` from the records in `results/measured`, which hold configuration, commit, versions,
threads and every accuracy of a run; a test makes this page again and compares. Runs are repeated, from the
configuration in their records, and compared to the last digit by

    python -m scripts.reproduce repeat RUN RUN --base_path data

(without names, ten picked at random), and the whole is made by `python -m scripts.reproduce run core --preset narrow`
and the other plans that are named below.
"""


def page(selection: Selection) -> str:
    parts = [OPENING, about(selection).replace("](docs/", "]("), choices_part(selection), claims_part(selection)]
    parts += [table_part(plan, selection) for plan in (*STUDIES.values(), PLANS["table2"], PLANS["table3"])]
    parts += [table_part(*found) for found in own_plans(selection.runs.measured)]
    parts.append(failures(selection.runs.measured))
    return "\n".join(part for part in parts if part)


QUESTIONS = {  # a claim, what a user asks, and the answers if it holds and if it does not
    "class-il": ("AdaB²N or BN, each in the paper's forward?", "AdaB²N", "BN"),
    "cn": ("CN or BN?", "CN", "BN"),
    "bn-joint": ("Joint or separate forward for BN?", "joint", "separate"),
    "same-forward": ("AdaB²N or BN, both in a joint forward?", "AdaB²N", "BN"),
    "cn-learned": ("CN's affine parameters: learned or frozen?", "learned", "frozen"),
    "above-cn-learned": ("AdaB²N or CN with learned affine parameters?", "AdaB²N", "CN"),
}


def choices_part(selection: Selection) -> str:
    """What follows for a user, no stronger than the intervals."""
    lines = []
    for id, (question, if_holds, if_not) in QUESTIONS.items():
        verdict = judge(CLAIMS[id], selection)
        if verdict.verdict != NO_RUNS:
            against = if_not if verdict.paired.is_below else "cannot be told yet"
            answer = if_holds if verdict.verdict == HOLDS else against
            where = "; ".join(verdict.cells)
            lines.append(f"- {question} **{answer}**: {numbers(verdict.paired)} in Class-IL ({where}).")
    lines += readings_line(selection)
    lines.append(
        "- κ, λ and `ada_t0`? The defaults, which were chosen on held-out images with one seed, and so are uncertain: "
        "[defaults.md](defaults.md)."
    )
    return "\n".join(["## What follows for a choice", "", *lines, ""])


def readings_line(selection: Selection) -> list[str]:
    """How far ours are from the published accuracies in either reading of Split CIFAR-100, where both have runs."""
    text, code = [], []
    for id in ("table2", "table3"):
        results = tabulate(PLANS[id], selection).results.values()
        off = {one.cell.experiment: one.difference for one in results if one.difference is not None}
        both = [one for one in off if one.data == "cifar100-10" and replace(one, data="cifar100") in off]
        text.append([off[replace(one, data="cifar100")] for one in both])
        code.append([off[one] for one in both])
    if not text[0]:
        return []
    said = ["Task-IL {}, Class-IL {}".format(*(difference(mean(each)) for each in found)) for found in (text, code)]
    return [
        "- Split CIFAR-100 in 20 tasks, as in the paper's text, or in 10, as in its code? Ours less the published, "
        f"mean over the rows that have both ({len(text[0])}): with 20 tasks {said[0]}; with 10 {said[1]}."
    ]


def numbers(paired: Paired) -> str:
    reach = "" if paired.interval is None else f" {interval(paired)}"
    return f"{difference(paired.mean)}{reach}, n = {paired.n}"


def claims_part(selection: Selection) -> str:
    rows = []
    for claim in CLAIMS.values():
        verdict = judge(claim, selection)
        for name, cell in verdict.started.items():
            rows.append((claim.statement, name, difference(cell.mean), interval(cell), str(cell.n),
                         f"{cell.wins} of {cell.n}"))  # fmt: skip
    head = ("statement", "cell", "difference", "95 % interval", "n", "wins")
    return "## Every cell behind README's table\n\n" + markdown(head, rows)


def table_part(plan: Plan, selection: Selection) -> str:
    """The rows of a plan that have runs."""
    table = tabulate(plan, selection)
    rows = [row for row in table.rows if any(_at(table, row, column) for column in table.columns)]
    if not rows:
        return ""
    columns = [column for column in table.columns if any(_at(table, row, column) for row in rows)]
    lines = [(row[1], *(number(table.results.get((row, column))) for column in columns)) for row in rows]
    head = ("", *(", ".join(column) for column in columns))
    note = f"{table.note}\n\n" if table.note else ""
    return f"## {plan.title} (`{plan.id}`)\n\n{note}" + markdown(head, lines)


def own_plans(measured: Path) -> Iterator[tuple[Plan, Selection]]:
    """Of `scripts/studies`: other networks and other data."""
    for path in sorted((ROOT / "scripts" / "studies").glob("*.toml")):
        study = read_study(path)
        selection = Selection("fixed", Runs(study.preset(), NOWHERE, measured=measured), study.seeds)
        for plan in study.plans().values():
            yield plan, selection


def _at(table, row, column) -> int:
    result = table.results.get((row, column))
    return result.n if result else 0


def number(result: Result | None) -> str:
    if result is None or not result.n:
        return "–"
    if result.cell.over is not None:
        return numbers(Paired(tuple(result.found)))
    spread = "" if result.std is None else f" ± {result.std:.1f}"
    paper = "" if result.paper is None else f"; paper {result.paper:.1f}"
    return f"{result.mean:.1f}{spread} (n = {result.n}{paper})"


# --- records ----------------------------------------------------------------------------------------------------------


def finished(selection: Selection) -> list[dict]:
    width = NARROW.flags["num_filters"]
    return [record for record in selection.runs.all_records() if record["config"].get("num_filters") == width]


def failures(measured: Path) -> str:
    """Runs that were started and did not finish, each with its reason."""
    records = [read_record(path) for path in sorted(measured.glob("*/record.json"))]
    failed = [record for record in records if record["status"] != "finished"]
    lines = [f"- `{record['run']}`{kappa_and_lambda(record['config'])}: {record['reason']}" for record in failed]
    return "\n".join(["## Runs that failed", "", *lines, ""]) if failed else ""


def kappa_and_lambda(config: dict) -> str:
    return f" (κ = {config['kappa']:g}, λ = {config['lambd']:g})" if "lambd" in config else ""


# --- the command ------------------------------------------------------------------------------------------------------


def with_part(text: str, part: str) -> str:
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not (found and closed):
        raise UsageError(f"{README.name} has no lines {BEGIN!r} and {END!r}: put them where the table belongs")
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def wanted() -> dict[Path, str]:
    """What the records say that README and page should be."""
    selection = evidence()
    return {README: with_part(README.read_text(encoding="utf-8"), readme_part(selection)), PAGE: page(selection)}


def picture() -> list[Path]:
    """README's figure, light and dark."""
    from scripts.figures.catalogue import FIGURES, draw

    with tempfile.TemporaryDirectory() as folder:
        drawn = draw(FIGURES["confounds"], evidence(), Path(folder))
        return [Path(shutil.copy(path, PAGE.parent)) for path in drawn if path.suffix == ".png"]


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m scripts.evidence", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args(argv)
    try:
        texts = wanted()
    except (UsageError, OSError) as error:
        process.complain(error)
        return 2
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if not arguments.check:
            write_atomically(path, lambda file, text=texts[path]: file.write(text.encode()))
        print(f"{path.relative_to(ROOT)}: {'not what the records say' if arguments.check else 'written'}")
    for path in [] if arguments.check else picture():
        print(f"{path.relative_to(ROOT)}: drawn")
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    process.begin()
    sys.exit(process.end(main()))
