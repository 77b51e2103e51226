"""Tables of results: our numbers, the published ones, and the difference between them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from utils.studies.compare import Paired, records_by_seed, totals_by_seed, values_by_seed
from utils.studies.plans import (
    NORMS,
    PLANS,
    SIGNIFICANCE_BASELINES,
    Cell,
    Comparison,
    Experiment,
    Plan,
    in_paper,
    significance_cells,
)
from utils.studies.presets import PAPER
from utils.studies.selection import Selection

FOLDER = Path(__file__).resolve().parents[2] / "results" / "paper"  # the paper's tables
PUBLISHED_SEEDS = 3
NOTABLE = 2.0  # |z| above which a difference is flagged
ROUNDING = 6  # digits of a percentage beyond which a difference is floating-point noise
EXACT_UP_TO = 50  # pairs; above, the normal approximation
FEWEST_PAIRS = 6  # with fewer, no two-sided signed-rank test can reach p < 0.05


# --- the paper's numbers ----------------------------------------------------------------------------------------------


@cache
def published(table: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Return (value, std) as printed, by row and column."""
    with open(FOLDER / f"{table}.csv", newline="", encoding="utf-8") as file:
        return {(line["row"], line["column"]): (line["value"], line["std"]) for line in csv.DictReader(file)}


def published_number(cell: Cell) -> tuple[float | None, float | None]:
    """Return value and standard deviation of a cell, None where the paper has none."""
    if cell.published is None:
        return None, None
    table, row, column = cell.published
    value, std = published(table).get((row, column), ("", ""))
    return float(value) if value else None, float(std) if std else None


@cache
def _published_values() -> dict[tuple[Experiment, tuple[str, ...]], float | None]:
    """Return the published accuracies and forgetting by experiment and metric."""
    cells = [cell for id in ("table2", "table3", "table4", "table8", "table11") for cell in PLANS[id].cells(PAPER)]
    return {(cell.experiment, cell.metric): published_number(cell)[0] for cell in cells}


def published_value(comparison: Comparison) -> float | None:
    """Return what the paper has for a comparison, None if it has no number for one of the terms."""
    values = _published_values()
    return comparison.total([values.get((experiment, comparison.metric)) for experiment in comparison.experiments])


@cache
def captions() -> dict[str, str]:
    with open(FOLDER / "tables.csv", newline="", encoding="utf-8") as file:
        return {line["id"]: line["caption"] for line in csv.DictReader(file)}


# --- tables -----------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """The numbers of one cell."""

    cell: Cell
    values: dict[int, float | None]  # by seed, None where a run is not finished
    paper: float | None = None
    paper_std: float | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    paths: dict[int, Path] = field(default_factory=dict)  # of the records of the cell's experiment, by seed

    @property
    def finished(self) -> list[float]:
        return [value for value in self.values.values() if value is not None]

    @property
    def paired(self) -> Paired:
        return Paired(tuple(self.finished))

    @property
    def n(self) -> int:
        return len(self.finished)

    @property
    def mean(self) -> float | None:
        return mean(self.finished) if self.finished else None

    @property
    def std(self) -> float | None:
        return stdev(self.finished) if self.n > 1 else None

    @property
    def complete(self) -> bool:
        return self.n == len(self.values)

    @property
    def difference(self) -> float | None:
        return None if self.paper is None or self.mean is None else self.mean - self.paper

    @property
    def z(self) -> float | None:
        """The difference to the paper in standard errors, None if a side has no spread."""
        if self.difference is None or self.std is None or self.paper_std is None:
            return None
        spread = math.sqrt(self.paper_std**2 / PUBLISHED_SEEDS + self.std**2 / self.n)
        return self.difference / spread if spread else None


@dataclass
class Table:
    """The results of a plan, in rows and columns."""

    id: str
    title: str
    caption: str
    note: str
    columns: list[tuple[str, ...]]
    rows: list[tuple[str, str]]  # group and name
    results: dict[tuple[tuple[str, str], tuple[str, ...]], Result]
    comparable: bool
    digits: int = 2
    texts: dict[str, dict[tuple[str, ...], str]] = field(default_factory=dict)  # further rows, as text
    numbers: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)  # the numbers in these texts
    data: dict[str, str] = field(default_factory=dict)  # titles of the preset's data sets
    records: dict[str, dict[str, Any]] = field(default_factory=dict)  # of all runs of the table, by name

    def note_records(self, results: Iterable[Result]) -> None:
        self.records |= {record["run"]: record for result in results for record in result.records}

    def is_best(self, result: Result) -> bool:
        """Return whether it is the best of its group in its column, if there are several."""
        rivals = [
            other.mean
            for other in self.results.values()
            if (other.cell.group, other.cell.column) == (result.cell.group, result.cell.column)
            and other.mean is not None
        ]
        if result.mean is None or len(rivals) < 2:
            return False
        return result.mean == (min(rivals) if result.cell.smaller_is_better else max(rivals))


def tabulate(plan: Plan, selection: Selection) -> Table:
    preset, selection = selection.runs.preset, selection.for_plan(plan)
    table = Table(
        plan.id, plan.title, captions().get(plan.id, ""), plan.note_for(preset), [], [], {}, preset.comparable,
        data={key: data.title for key, data in preset.data.items()},
    )  # fmt: skip
    if plan.id == "table10":
        add_significance(table, selection)
        return table
    for cell in plan.cells(preset):
        row = (cell.group, cell.row)
        if row not in table.rows:
            table.rows.append(row)
        if cell.column not in table.columns:
            table.columns.append(cell.column)
        table.results[row, cell.column] = evaluate(cell, selection)
    table.note_records(table.results.values())
    if plan.id == "table6":
        add_running_time(table)
    return table


def evaluate(cell: Cell, selection: Selection) -> Result:
    records = [records_by_seed(experiment, selection) for experiment in cell.comparison.experiments]
    values = totals_by_seed(cell.comparison, records)
    runs = dict(zip(selection.seeds, selection.final(cell.experiment) or (), strict=False))
    return Result(
        cell,
        {seed: values.get(seed) for seed in selection.seeds},
        *published_number(cell),
        records=[record for by_seed in records for record in by_seed.values() if record is not None],
        paths={seed: selection.runs.record_path(runs[seed]) for seed in values},
    )


def resnet18_norm_shapes(width: int = 64) -> list[tuple[int, int]]:
    """Return (channels, side of the map) of the 20 norm layers of a 32x32 ResNet-18, in order."""
    return [(width * 2**stage, 32 // 2**stage) for stage in range(4) for _ in range(5)]


def flops_per_step(norm: str, batch: int = 10, width: int = 64, groups: int = 32) -> int:
    """Return the FLOPs of the 20 norm layers of a 32x32 ResNet-18 in one step, counted as the paper does."""
    total = 0
    for channels, side in resnet18_norm_shapes(width):
        elements = batch * channels * side * side
        batch_norm = 8 * elements + 10 * channels
        total += {
            "bn": batch_norm,
            "adab2n": 8 * elements + 2 * batch * channels + 14 * channels,
            "gn": 8 * elements + 4 * batch * groups,
            "cn": 6 * elements + 4 * batch * groups + batch_norm,
        }[norm]
    return total


def add_running_time(table: Table) -> None:
    """Add rows with the FLOPs as the paper counts them, which need no run, and with ratios to BN."""
    names = {title: norm for norm, title in NORMS.items()}
    flops = {column: flops_per_step(names[column[0]]) for column in table.columns}
    printed_as = {column: in_paper(names[column[0]]) for column in table.columns}
    table.texts["FLOPs/step of the paper's network, ours"] = {
        column: f"{value / 1e6:.2f}M" for column, value in flops.items()
    }
    table.texts["FLOPs/step, published"] = {
        column: published("table6")["FLOPs/step", name][0] for column, name in printed_as.items()
    }
    times = {column: table.results[table.rows[0], column].mean for column in table.columns}
    base = times[table.columns[0]]
    table.texts["Time, ratio to BN, ours"] = {
        column: f"{time / base:.2f}" if time and base else "missing" for column, time in times.items()
    }
    for kind in ("Plain", "cuDNN"):
        table.texts[f"Time ({kind}), published"] = {
            column: published("table6").get((f"Time ({kind})", name), ("-",))[0] for column, name in printed_as.items()
        }


# --- Table 10 ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SignedRank:
    """Wilcoxon's two-sided test of paired differences, without the pairs that are equal."""

    p: float | None
    wins: int  # differences above zero
    losses: int
    equal: int

    def text(self) -> str:
        n = self.wins + self.losses
        if self.p is None:
            return f"all {self.equal} pairs equal" if self.equal else "missing"
        equal = f", {self.equal} equal" if self.equal else ""
        few = "; too few pairs to mean anything" if n < FEWEST_PAIRS else ""
        return f"{self.p:.1e} (n = {n}: above in {self.wins}, below in {self.losses}{equal}{few})"

    def numbers(self) -> dict[str, float]:
        counts = {"wins": self.wins, "losses": self.losses, "equal": self.equal}
        return {} if self.p is None else {"p": self.p, "n": self.wins + self.losses, **counts}


def signed_rank(differences: list[float]) -> SignedRank:
    rounded = [round(difference, ROUNDING) for difference in differences]
    unequal = [difference for difference in rounded if difference]
    wins = sum(difference > 0 for difference in unequal)
    p = None
    if unequal:
        from scipy.stats import wilcoxon

        p = float(wilcoxon(unequal, method="exact" if len(unequal) <= EXACT_UP_TO else "approx").pvalue)
    return SignedRank(p, wins, len(unequal) - wins, len(differences) - len(unequal))


def add_significance(table: Table, selection: Selection) -> None:
    groups = significance_cells(selection.runs.preset)
    table.columns = [(group, NORMS[norm]) for group in groups for norm in SIGNIFICANCE_BASELINES]
    table.texts = {"p, published": {}, "p from the published means": {}, "p from our single seeds": {}}
    table.note_records(evaluate(cell, selection) for cell in groups["Both"])
    for group, cells in groups.items():
        for norm in SIGNIFICANCE_BASELINES:
            column = (group, NORMS[norm])
            table.texts["p, published"][column] = published("table10")["p-value", " ".join(column)][0]
            tests = {
                "p from the published means": signed_rank(published_gains(group, norm)),
                "p from our single seeds": signed_rank(
                    [gain for comparison in gains_over(norm, cells)
                     for gain in values_by_seed(comparison, selection).values()]
                ),
            }  # fmt: skip
            for row, test in tests.items():
                table.texts[row][column] = test.text()
                table.numbers[row, " / ".join(column)] = test.numbers()


def gains_over(norm: str, cells: Iterable[Cell]) -> Iterator[Comparison]:
    """Yield AdaB2N minus another norm for every cell of AdaB2N."""
    for cell in cells:
        if cell.experiment.norm == "adab2n":
            yield replace(cell, baseline=replace(cell.experiment, norm=norm)).comparison


def published_gains(group: str, norm: str) -> list[float]:
    """Return AdaB2N's gains over another norm in all published results, whatever preset is run."""
    gains = [published_value(comparison) for comparison in gains_over(norm, significance_cells(PAPER)[group])]
    return [gain for gain in gains if gain is not None]


# --- provenance -------------------------------------------------------------------------------------------------------


CONDITIONS = {"num_threads": "thread counts", "device": "devices", "torch": "versions of torch"}


def warnings(tables: list[Table]) -> list[str]:
    """Return a line for everything in which the records of a table differ, or differ from today's code."""
    ids_by_text: dict[str, list[str]] = {}
    for table in tables:
        for text in _differences(list(table.records.values())):
            ids_by_text.setdefault(text, []).append(table.id)
    return [f"{text}: {', '.join(ids)}" for text, ids in ids_by_text.items()]


def _differences(records: list[dict[str, Any]]) -> Iterator[str]:
    if resumed := sum(bool(record.get("code_changes")) for record in records):
        yield f"{resumed} records are of runs that were resumed with changed code"
    for name, title in CONDITIONS.items():
        values = {str(condition[name]) for record in records for condition in record["conditions"]}
        if len(values) > 1:
            yield f"records of different {title} ({', '.join(sorted(values))}), which round differently"
