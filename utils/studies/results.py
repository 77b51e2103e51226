"""Tables of results: our numbers, the published ones, and the difference between them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any

from utils.run.records import mixed_conditions
from utils.studies import plans
from utils.studies.compare import Paired, dropped_seeds, records_by_seed, values_by_seed
from utils.studies.confirm import PAPER_WIDTH
from utils.studies.plans import NORMS, PLANS, Cell, Comparison, Experiment, Plan, in_paper
from utils.studies.presets import PAPER, Preset
from utils.studies.runs import Runs
from utils.studies.selection import Selection
from utils.tables import count_of

if TYPE_CHECKING:
    from utils.studies.verdicts import Verdict

FOLDER = Path(__file__).resolve().parents[2] / "results" / "paper"  # the paper's tables
PUBLISHED_SEEDS = 3
LOWER_IS_BETTER = "lower is better"
NOTABLE = 2.0  # |z| above which a difference is flagged
ROUNDING = 6  # digits of a percentage beyond which a difference is floating-point noise
EXACT_UP_TO = 50  # pairs; above, the normal approximation
FEWEST_PAIRS = 6  # with fewer, no two-sided signed-rank test can reach p < 0.05


# --- the paper's numbers ----------------------------------------------------------------------------------------------


def _lines(table: str) -> list[dict[str, str]]:
    with open(FOLDER / f"{table}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def published(table: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Return (value, std) as printed, by row and column."""
    return {(line["row"], line["column"]): (line["value"], line["std"]) for line in _lines(table)}


def published_number(cell: Cell) -> tuple[float | None, float | None]:
    """Return value and standard deviation of a cell, None where the paper has none."""
    if cell.published is None:
        return None, None
    table, row, column = cell.published
    value, std = published(table).get((row, column), ("", ""))
    return float(value) if value else None, float(std) if std else None


@cache
def _published_numbers() -> dict[tuple[Experiment, tuple[str, ...]], tuple[float | None, float | None]]:
    tables = ("table2", "table3", "table4", "table8", "table9", "table11")
    cells = [cell for id in tables for cell in PLANS[id].cells(PAPER)]
    return {(cell.experiment, cell.metric): published_number(cell) for cell in cells}


def published_value(comparison: Comparison) -> float | None:
    """Return what the paper has for a comparison, None if it has no number for one of the terms."""
    published = published_difference([[comparison]])
    return None if published is None else published.mean


def published_difference(cells: Sequence[Sequence[Comparison]]) -> Paired | None:
    """Return the paper's mean over cells, each a mean of comparisons, with the interval of Welch's test.

    None if the paper lacks a number; without an interval if it lacks a standard deviation.
    """
    weights: dict[tuple[Experiment, tuple[str, ...]], float] = {}
    for comparison, share in ((each, 1 / len(cells) / len(group)) for group in cells for each in group):
        for sign, experiment in comparison.terms:
            key = (as_published(experiment), comparison.metric)
            weights[key] = weights.get(key, 0.0) + sign * share
    numbers = [(weight, *_published_numbers().get(key, (None, None))) for key, weight in weights.items()]
    if not numbers or any(value is None for _, value, _ in numbers):
        return None
    center = sum(weight * (value or 0.0) for weight, value, _ in numbers)
    variances = [(weight * (std or 0.0)) ** 2 / PUBLISHED_SEEDS for weight, _, std in numbers]
    if any(std is None for _, _, std in numbers):
        return Paired(pooled=(center, 0.0, 0.0), cell_sizes=(PUBLISHED_SEEDS,))
    df = sum(variances) ** 2 / sum(variance**2 / (PUBLISHED_SEEDS - 1) for variance in variances)
    return Paired(pooled=(center, math.sqrt(sum(variances)), df), cell_sizes=(PUBLISHED_SEEDS,))


def as_published(experiment: Experiment) -> Experiment:
    """Return the experiment without flags that name what the paper has: its width, and each norm's forward pass."""
    forward = plans.JOINT if experiment.norm == "adab2n" else plans.SEPARATE
    return replace(experiment, flags=tuple(flag for flag in experiment.flags if flag not in {*PAPER_WIDTH, *forward}))


# --- tables -----------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """The numbers of one cell."""

    cell: Cell
    values: dict[int, float | None]  # by seed, None where a run is not finished
    paper: float | None = None
    paper_std: float | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[int, list[str]] = field(default_factory=dict)  # by seed, the names of the runs behind its value

    def __post_init__(self) -> None:
        self.paired = Paired(tuple(value for value in self.values.values() if value is not None))
        self.n, self.mean = self.paired.n, self.paired.mean
        self.std = stdev(self.paired.differences) if self.n > 1 else None
        self.complete = self.n == len(self.values)
        self.difference = None if self.paper is None or self.mean is None else self.mean - self.paper
        self.z: float | None = None  # the difference in standard errors, None if a side has no spread
        if self.difference is not None and self.std is not None and self.paper_std is not None:
            spread = math.sqrt(self.paper_std**2 / PUBLISHED_SEEDS + self.std**2 / self.n)
            self.z = self.difference / spread if spread else None


Row = tuple[str, str]  # group and name
Column = tuple[str, ...]  # the levels of the head


@dataclass
class Table:
    """The results of a plan, in rows and columns."""

    id: str
    title: str
    preset: Preset
    results: dict[tuple[Row, Column], Result]
    note: str = ""
    texts: dict[str, dict[Column, str]] = field(default_factory=dict)  # further rows, as text
    numbers: dict[tuple[str, Column], dict[str, float]] = field(default_factory=dict)  # the numbers in these texts
    records: dict[str, dict[str, Any]] = field(default_factory=dict)  # of all runs of the table, by name
    dropped: dict[str, list[int]] = field(default_factory=dict)  # by cell, seeds that only some of its runs have

    @property
    def caption(self) -> str:
        return {line["id"]: line["caption"] for line in _lines("tables")}.get(self.id, "")

    @property
    def rows(self) -> list[Row]:
        return list(dict.fromkeys(row for row, _ in self.results))

    @property
    def columns(self) -> list[Column]:
        in_texts = [column for texts in self.texts.values() for column in texts]
        return list(dict.fromkeys([*(column for _, column in self.results), *in_texts]))

    def differences(self, separator: str) -> dict[str, dict[str, Paired]]:
        """Return the paired values by column and row; the title of a column says if lower is better."""
        columns: dict[str, dict[str, Paired]] = {}
        for ((_, row), column), result in self.results.items():
            title = separator.join([*column, *[LOWER_IS_BETTER] * result.cell.smaller_is_better])
            columns.setdefault(title, {})[row] = result.paired
        return columns

    def is_best(self, result: Result) -> bool:
        """Return whether it is the best of its group in its column, if there are several; of differences, a gain."""
        place = (result.cell.group, result.cell.column)
        rivals = [other.mean for other in self.results.values()
                  if (other.cell.group, other.cell.column) == place and other.mean is not None]  # fmt: skip
        if result.mean is None or len(rivals) < 2:
            return False
        sign = -1 if result.cell.smaller_is_better else 1
        is_loss = result.cell.baseline is not None and sign * result.mean <= 0
        return not is_loss and sign * result.mean == max(sign * rival for rival in rivals)


def tabulate(plan: Plan, selection: Selection) -> Table:
    preset, selection = selection.runs.preset, selection.for_plan(plan)
    results = {((cell.group, cell.row), cell.column): evaluate(cell, selection) for cell in plan.cells(preset)}
    records = {record["run"]: record for result in results.values() for record in result.records}
    dropped = {", ".join([result.cell.row, *result.cell.column]): seeds for result in results.values()
               if result.n and (seeds := dropped_seeds(result.cell.comparison, selection))}  # fmt: skip
    table = Table(plan.id, plan.title, preset, results, plan.note, records=records, dropped=dropped)
    if plan.id == "table10":
        table.results = {}
        add_significance(table, selection)
    elif plan.id == "table6":
        add_running_time(table)
    return table


def evaluate(cell: Cell, selection: Selection) -> Result:
    by_seed = values_by_seed(cell.comparison, selection)
    values = {seed: by_seed.get(seed) for seed in selection.seeds}
    records = [records_by_seed(experiment, selection) for experiment in cell.comparison.experiments]
    runs = {seed: [of_experiment[seed]["run"] for of_experiment in records] for seed in by_seed}
    paper = published_number(cell) if selection.runs.preset.has_published_data(cell.experiment.data) else (None, None)
    return Result(cell, values, *paper, [*chain(*(each.values() for each in records))], runs)


def flops_per_step(norm: str) -> int:
    """Return the FLOPs of the 20 norm layers of a 32x32 ResNet-18 in one step, counted as the paper does."""
    batch, groups, total = 10, 32, 0
    for stage in range(4):
        channels = 64 * 2**stage
        elements = batch * channels * (32 // 2**stage) ** 2
        of_layer = {
            "bn": 8 * elements + 10 * channels,
            "adab2n": 8 * elements + 2 * batch * channels + 14 * channels,
            "gn": 8 * elements + 4 * batch * groups,
            "cn": 14 * elements + 4 * batch * groups + 10 * channels,
        }
        total += 5 * of_layer[norm]
    return total


def add_running_time(table: Table) -> None:
    """Add rows with the FLOPs as the paper counts them, which need no run, and with ratios to BN."""
    norms: dict[Column, str] = {(title,): norm for norm, title in NORMS.items() if (title,) in table.columns}
    times = {column: table.results[table.rows[0], column].mean for column in norms}
    base, paper = times["BN",], published("table6")
    ratios = {column: f"{time / base:.2f}" if time and base else "missing" for column, time in times.items()}
    flops = {column: f"{flops_per_step(norm) / 1e6:.2f}M" for column, norm in norms.items()}
    times_published = ("Time (Plain)", "Time (cuDNN)") if table.preset.has_published_data("cifar100") else ()
    rows = {row: {column: paper.get((row, in_paper(norm)), ("-",))[0] for column, norm in norms.items()}
            for row in ("FLOPs/step", *times_published)}  # fmt: skip
    table.texts = {
        "FLOPs/step of the paper's network, ours": flops, "FLOPs/step, published": rows.pop("FLOPs/step"),
        "Time, ratio to BN, ours": ratios, **{f"{row}, published": texts for row, texts in rows.items()},
    }  # fmt: skip


def signed_rank(differences: list[float]) -> tuple[str, dict[str, float]]:
    """Return Wilcoxon's two-sided test, without the pairs that are equal, as text and as numbers."""
    unequal = [difference for value in differences if (difference := round(value, ROUNDING))]
    n, equal = len(unequal), len(differences) - len(unequal)
    if not unequal:
        return f"all {equal} pairs equal" if equal else "missing", {}
    from scipy.stats import wilcoxon

    p = float(wilcoxon(unequal, method="exact" if n <= EXACT_UP_TO else "approx").pvalue)
    wins = sum(difference > 0 for difference in unequal)
    also_equal = f", {equal} equal" if equal else ""
    few = "; too few pairs to mean anything" if n < FEWEST_PAIRS else ""
    text = f"{p:.1e} (n = {n}: above in {wins}, below in {n - wins}{also_equal}{few})"
    return text, {"p": p, "n": n, "wins": wins, "losses": n - wins, "equal": equal}


def add_significance(table: Table, selection: Selection) -> None:
    """Add the tests of Table 10: as published, from the published means, and from our single seeds."""

    def gains(preset: Preset) -> list[Comparison]:
        cells = [cell for cell in plans.significance_cells(preset)[group] if cell.experiment.norm == "adab2n"]
        return [replace(cell, baseline=replace(cell.experiment, norm=norm)).comparison for cell in cells]

    for group in plans.significance_cells(PAPER):
        for norm in plans.SIGNIFICANCE_BASELINES:
            column = (group, NORMS[norm])
            means = [published_value(comparison) for comparison in gains(PAPER)]
            ours = [values_by_seed(comparison, selection).values() for comparison in gains(table.preset)]
            samples = {"p from our single seeds": [*chain(*ours)]}
            if table.preset.has_published_data("cifar10"):
                p = published("table10")["p-value", " ".join(column)][0]
                table.texts.setdefault("p, published", {})[column] = p
                samples = {"p from the published means": [value for value in means if value is not None]} | samples
            for row, differences in samples.items():
                table.texts.setdefault(row, {})[column], table.numbers[row, column] = signed_rank(differences)


def warnings(parts: Iterable[Table | Verdict], runs: Runs) -> list[str]:
    """Return a line for everything in which the records of a part differ, and for what of the runs does not count."""
    ids_by_text: dict[str, list[str]] = {}
    for part in parts:
        records, texts = part.records.values(), []
        if resumed := sum(bool(record.get("code_changes")) for record in records):
            texts.append(f"{count_of(resumed, 'record')} resumed with changed code")
        texts += mixed_conditions(records)
        contents: dict[str, set[str]] = {}
        for identity in (record["identity"] for record in records):
            contents.setdefault(identity["dataset"], set()).add(identity["data"])
        for dataset, prints in contents.items():
            if len(prints) > 1:
                texts.append(f"records on different contents of {dataset} ({', '.join(sorted(prints))})")
        for cell, seeds in part.dropped.items():
            numbers = ", ".join(map(str, seeds))
            texts.append(f"no pair for seed{'s' * (len(seeds) > 1)} {numbers} of {cell}: a run is not finished")
        for text in texts:
            ids_by_text.setdefault(text, []).append(part.id)
    lines = [f"{text}: {', '.join(ids)}" for text, ids in ids_by_text.items()]
    return [*lines, *runs.changed_code_warnings(), *runs.on_other_data(), *runs.differing_copies()]
