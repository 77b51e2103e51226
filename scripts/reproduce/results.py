"""From runs to the numbers of a table: ours, the published ones, and how far apart they are."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import mean, stdev

from scripts.paper_tables import FOLDER
from scripts.reproduce.plans import NORMS, SIGNIFICANCE_BASELINES, Cell, Plan, in_paper, significance_cells
from scripts.reproduce.presets import PAPER
from scripts.reproduce.runs import Run
from scripts.reproduce.selection import Selection
from utils.config.arguments import Config
from utils.run.sources import changed_sources, sources_of

PUBLISHED_SEEDS = 3
NOTABLE = 2.0  # |z| above which a difference is flagged
ROUNDING = 6  # digits of a percentage beyond which a difference is floating-point noise
EXACT_UP_TO = 50  # pairs; above, the normal approximation
FEWEST_PAIRS = 6  # with fewer, no two-sided signed-rank test can reach p < 0.05


@cache
def published(table: str) -> dict[tuple[str, str], tuple[str, str]]:
    """(value, std) as printed, by row and column."""
    with open(FOLDER / f"{table}.csv", newline="", encoding="utf-8") as file:
        return {(line["row"], line["column"]): (line["value"], line["std"]) for line in csv.DictReader(file)}


@cache
def captions() -> dict[str, str]:
    with open(FOLDER / "tables.csv", newline="", encoding="utf-8") as file:
        return {line["id"]: line["caption"] for line in csv.DictReader(file)}


@dataclass
class Result:
    """One cell. `values` has one entry a seed, None where its run is not finished."""

    cell: Cell
    values: list[float | None]
    paper: float | None = None
    paper_std: float | None = None
    records: list[dict] = field(default_factory=list)
    by_seed: list[tuple[int, float, Path]] = field(default_factory=list)  # seed, value, record, of those that are there

    @property
    def found(self) -> list[float]:
        return [value for value in self.values if value is not None]

    @property
    def n(self) -> int:
        return len(self.found)

    @property
    def mean(self) -> float | None:
        return mean(self.found) if self.found else None

    @property
    def std(self) -> float | None:
        return stdev(self.found) if self.n > 1 else None

    @property
    def complete(self) -> bool:
        return None not in self.values

    @property
    def difference(self) -> float | None:
        return None if self.paper is None or self.mean is None else self.mean - self.paper

    @property
    def z(self) -> float | None:
        """None where one side has no spread to speak of."""
        if self.difference is None or self.std is None or self.paper_std is None:
            return None
        spread = math.sqrt(self.paper_std**2 / PUBLISHED_SEEDS + self.std**2 / self.n)
        return self.difference / spread if spread else None


@dataclass
class Table:
    """What reports are made of."""

    id: str
    title: str
    caption: str
    note: str
    columns: list[tuple[str, ...]]
    rows: list[tuple[str, str]]  # group and name
    results: dict[tuple[tuple[str, str], tuple[str, ...]], Result]
    comparable: bool
    digits: int = 2
    texts: dict[str, dict[tuple[str, ...], str]] = field(default_factory=dict)  # further rows, already in words
    numbers: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)  # behind such words
    data: dict[str, str] = field(default_factory=dict)  # titles of the preset's data sets
    records: dict[str, dict] = field(default_factory=dict)  # all that stand behind the table, by run

    def note_records(self, results: Iterable[Result]) -> None:
        self.records |= {record["run"]: record for result in results for record in result.records}

    def is_best(self, result: Result) -> bool:
        """Of its group's rows in its column, if there is something to compare."""
        rivals = [
            other.mean
            for other in self.results.values()
            if (other.cell.group, other.cell.column) == (result.cell.group, result.cell.column) and other.found
        ]
        if result.mean is None or len(rivals) < 2:
            return False
        return result.mean == (min if result.cell.smaller_is_better else max)(rivals)


def tabulate(plan: Plan, selection: Selection) -> Table:
    preset, selection = selection.runs.preset, selection.for_plan(plan)
    table = Table(
        plan.id, plan.title, captions().get(plan.id, ""), plan.note_for(preset), [], [], {}, preset.comparable,
        data={key: data.title for key, data in preset.data.items()},
    )  # fmt: skip
    if plan.id == "table10":
        return significance(table, selection)
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
    ours = _by_seed(cell, selection.final(cell.experiment), selection)
    if cell.over is None:
        values, theirs = [value for value, _ in ours], []
    else:
        theirs = _by_seed(cell, selection.final(cell.over), selection)
        pairs = zip(ours, theirs, strict=True)
        values = [None if None in (one, other) else one - other for (one, _), (other, _) in pairs]
    result = Result(cell, values, records=[record for _, record in [*ours, *theirs] if record])
    runs = selection.final(cell.experiment) or []
    result.by_seed = [
        (seed, value, selection.runs.record_path(run))
        for seed, value, run in zip(selection.seeds, values, runs, strict=False)
        if value is not None
    ]
    if cell.published is not None:
        table, row, column = cell.published
        value, std = published(table).get((row, column), ("", ""))
        result.paper, result.paper_std = float(value) if value else None, float(std) if std else None
    return result


def _by_seed(cell: Cell, runs: list[Run] | None, selection: Selection) -> list[tuple[float | None, dict | None]]:
    found = []
    for index in range(len(selection.seeds)):
        record = None if runs is None else selection.runs.record(runs[index])
        value = record
        for key in cell.metric:
            value = None if value is None else value[key]
        found.append((value, record))
    return found


def add_running_time(table: Table) -> None:
    """FLOPs as the paper counts them, which need no run, and ratios to BN."""
    from scripts.bench.norms import flops_per_step

    names = {title: norm for norm, title in NORMS.items()}
    flops = {column: flops_per_step(names[column[0]]) for column in table.columns}
    printed_as = {column: in_paper(names[column[0]]) for column in table.columns}
    base = table.columns[0]
    table.texts["FLOPs/step of the paper's network, ours"] = {
        column: f"{value / 1e6:.2f}M" for column, value in flops.items()
    }
    table.texts["FLOPs/step, published"] = {
        column: published("table6")["FLOPs/step", name][0] for column, name in printed_as.items()
    }
    times = {column: table.results[table.rows[0], column].mean for column in table.columns}
    table.texts["Time, ratio to BN, ours"] = {
        column: f"{time / times[base]:.2f}" if time and times[base] else "missing" for column, time in times.items()
    }
    for kind in ("Plain", "cuDNN"):
        table.texts[f"Time ({kind}), published"] = {
            column: published("table6").get((f"Time ({kind})", name), ("-",))[0] for column, name in printed_as.items()
        }


# --- Table 10 ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SignedRank:
    """Wilcoxon's test of paired differences, two-sided. Equal pairs tell nothing."""

    p: float | None
    wins: int  # differences above zero
    losses: int
    equal: int

    def words(self) -> str:
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
    told = [round(difference, ROUNDING) for difference in differences]
    told = [difference for difference in told if difference]
    wins = sum(difference > 0 for difference in told)
    p = None
    if told:
        from scipy.stats import wilcoxon

        p = float(wilcoxon(told, method="exact" if len(told) <= EXACT_UP_TO else "approx").pvalue)
    return SignedRank(p, wins, len(told) - wins, len(differences) - len(told))


def significance(table: Table, selection: Selection) -> Table:
    groups = significance_cells(selection.runs.preset)
    table.columns = [(group, NORMS[norm]) for group in groups for norm in SIGNIFICANCE_BASELINES]
    rows = {"p, published": {}, "p from the published means": {}, "p from our single seeds": {}}
    for group, cells in groups.items():
        results = {(cell.group, cell.column, cell.metric, cell.experiment.norm): evaluate(cell, selection)
                   for cell in cells}  # fmt: skip
        table.note_records(results.values())
        for norm in SIGNIFICANCE_BASELINES:
            column = (group, NORMS[norm])
            pairs = list(_paired(results, norm))
            rows["p, published"][column] = published("table10")["p-value", f"{group} {NORMS[norm]}"][0]
            found = {"p from the published means": signed_rank(published_gains(group, norm))}
            of_ours = [
                one - other
                for ours, base in pairs
                for one, other in zip(ours.values, base.values, strict=True)
                if None not in (one, other)
            ]
            found["p from our single seeds"] = signed_rank(of_ours)
            for row, test in found.items():
                rows[row][column] = test.words()
                table.numbers[row, " / ".join(column)] = test.numbers()
    table.texts = rows
    return table


def published_gains(group: str, norm: str) -> list[float]:
    """Of AdaB2N over another norm, in all published results; they are the same whatever preset is run."""
    cells = {(cell.group, cell.column, cell.metric, cell.experiment.norm): cell.published
             for cell in significance_cells(PAPER)[group]}  # fmt: skip
    value = {key: float(published(table)[row, column][0]) for key, (table, row, column) in cells.items()}
    return [mean - value[*key, norm] for (*key, of), mean in value.items() if of == "adab2n"]


def _paired(results: dict, norm: str) -> Iterable[tuple[Result, Result]]:
    for (group, column, metric, of), result in results.items():
        if of == "adab2n" and (group, column, metric, norm) in results:
            yield result, results[group, column, metric, norm]


# --- provenance -------------------------------------------------------------------------------------------------------


def warnings(tables: list[Table]) -> list[str]:
    """Where the records under a table are not of one kind, or not of today's code."""
    found: dict[str, list[str]] = {}
    for table in tables:
        for text in _oddities(list(table.records.values())):
            found.setdefault(text, []).append(table.id)
    return [f"{text}: {', '.join(ids)}" for text, ids in found.items()]


def _oddities(records: list[dict]) -> Iterator[str]:
    yield from other_code(records)
    for name, title in CONDITIONS.items():
        found = {str(one[name]) for record in records for one in record["conditions"]}
        if len(found) > 1:
            yield f"records of different {title} ({', '.join(sorted(found))}), which round differently"


CONDITIONS = {"num_threads": "thread counts", "device": "devices", "torch": "versions of torch"}


def other_code(records: list[dict]) -> list[str]:
    """Which of the files behind these numbers have changed since."""
    lines = []
    changed, resumed = Counter(), 0
    for record in records:
        now = sources_of(Config(**record["config"]))
        changed.update(changed_sources(record["sources"], now))
        resumed += bool(record.get("code_changes"))
    for name, count in sorted(changed.items()):
        lines.append(f"{name} has changed since {count} of {len(records)} records were made")
    if resumed:
        lines.append(f"{resumed} records are of runs whose code changed on the way, which was accepted")
    return lines
