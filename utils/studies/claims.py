"""The paper's statements as data, and what runs say of them.

A statement has cells, each a comparison such as AdaB2N minus BN. The cells of a seed are averaged first; the verdict is
about the mean over seeds and its 95 % t-interval:

    holds           the interval lies above zero (of an "alike" statement: within its margin)
    does not hold   it lies below zero (outside the margin)
    inconclusive    neither
    no verdict      fewer than three confirmatory seeds, or less than a third of the statement's cells

Only the confirmatory seeds of docs/protocol.md count. What the other seeds say is shown beside it.

A statement about every benchmark needs all means above zero, and does not hold if one cell's own interval, of three
seeds or more, lies below it. That interval allows for the number of cells (Bonferroni): of many cells without a
difference, one often lies below zero by chance. If some cells have two seeds or more, cells with one are left out of
the mean: they have no spread. The mean with them must lie on the same side, so that a cell that loses a seed cannot
reverse a verdict. Cells without runs are counted and named; no verdict is about them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from statistics import mean
from typing import Any

from utils.studies import plans
from utils.studies.compare import CONFIDENCE, Paired, averaged, dropped_seeds, records_by_seed, values_by_seed
from utils.studies.confirm import CONFIRMATORY_SEEDS
from utils.studies.plans import CLASS_IL, METHODS, ONLINE, PLANS, Comparison, Experiment, Flags, faa, title_of
from utils.studies.presets import Preset
from utils.studies.results import published_value
from utils.studies.selection import Selection

HOLDS, FAILS, OPEN, NO_VERDICT = "holds", "does not hold", "inconclusive", "no verdict"
ENOUGH = 3  # seeds of a cell
ENOUGH_CELLS = 1 / 3  # of a statement

NamedCells = Iterator[tuple[str, Comparison]]
Cells = Callable[[Preset], NamedCells]
Variant = tuple[str, Flags]  # norm and further flags


@dataclass(frozen=True)
class Claim:
    id: str
    statement: str
    source: str  # where the paper says so, or that it is our question
    cells: Cells
    every: bool = False  # whether it is about every cell, not about their average
    alike: float | None = None  # points within which it calls two things alike; the margin is ours


# --- cells ------------------------------------------------------------------------------------------------------------


def minus(first: Experiment, second: Experiment, metric: tuple[str, ...]) -> Comparison:
    return Comparison(((1, first), (-1, second)), metric)


def online(first: Variant, second: Variant, metric: tuple[str, ...] = faa(CLASS_IL), *, studied: bool = False) -> Cells:
    """Return one variant minus another with both online methods, for every memory or only where studies are run."""
    where = plans.places if studied else partial(plans.memories, keys=plans.ONE_READING)

    def cells(preset: Preset) -> NamedCells:
        for model in ONLINE:
            for key, buffer in where(preset):
                ours, theirs = (Experiment(model, norm, key, buffer, flags) for norm, flags in (first, second))
                yield f"{METHODS[model]}, {preset.data[key].title}, M = {buffer}", minus(ours, theirs, metric)

    return cells


def gain_of_gains(preset: Preset, flags: Flags) -> NamedCells:
    """Yield AdaB2N's gain over BN with these flags minus that without them, Class-IL."""
    without = dict(online(ADAB2N, BN)(preset))
    for name, gain in online(("adab2n", flags), ("bn", flags))(preset):
        (_, ours), (_, bn) = without[name].terms
        yield name, Comparison((*gain.terms, (-1, ours), (1, bn)), gain.metric)


def range_of_kappa_and_lambda(preset: Preset) -> NamedCells:
    for cell in PLANS["fig3"].cells(preset):
        if cell.metric == faa(CLASS_IL):
            kappa, lambd = (value for _, value in cell.experiment.flags)
            bn = replace(cell.experiment, norm="bn", flags=())
            yield f"κ = {kappa:g}, λ = {lambd:g}", minus(cell.experiment, bn, cell.metric)


def less_forgetting(preset: Preset) -> NamedCells:
    for other in (BN, CN):
        for name, comparison in online(other, ADAB2N, plans.FORGETTING)(preset):
            yield f"{name}, {title_of(other[0])}", comparison


def in_table(id: str, first: str, *others: str, model: str | None = None) -> Cells:
    """Return one norm minus others in a table, with one of its methods or with all."""

    def cells(preset: Preset) -> NamedCells:
        for cell in PLANS[id].cells(preset):
            theirs = cell.experiment
            if theirs.norm in others and model in (None, theirs.model):
                name = f"{cell.group}, {', '.join(cell.column)}, {title_of(theirs.norm)}"
                yield name, minus(replace(theirs, norm=first), theirs, cell.metric)

    return cells


# --- the statements, in the paper's order; then our questions ---------------------------------------------------------

BN, CN, ADAB2N = (("bn", ()), ("cn", ()), ("adab2n", ()))
BN_JOINT, CN_LEARNED = ("bn", plans.JOINT), ("cn", plans.LEARNED)
TABLE_2, TABLE_3, TABLE_4, TABLE_8 = "Sec. 5, Table 2", "Sec. 5, Table 3", "Sec. 5, Table 4", "App. C, Table 8"
OURS = "our question"

_CLAIMS = (
    Claim("class-il", "AdaB²N is above BN in online Class-IL on every benchmark", TABLE_3, online(ADAB2N, BN),
          every=True),
    Claim("task-il", "AdaB²N is above BN in online Task-IL on every benchmark", TABLE_2,
          online(ADAB2N, BN, faa(plans.TASK_IL)), every=True),
    Claim("above-cn", "AdaB²N is above CN in online Class-IL over a range of memory sizes", TABLE_3,
          online(ADAB2N, CN), every=True),
    Claim("cn", "CN is moderately above BN in online Class-IL", TABLE_3, online(CN, BN)),
    Claim("below-gn", "BN is above GN in online Class-IL", TABLE_3, online(BN, ("gn", ()))),
    Claim("below-ln", "BN is above LN in online Class-IL", TABLE_3, online(BN, ("ln", ()))),
    Claim("below-in", "BN is above IN in online Class-IL", TABLE_3, online(BN, ("in", ()))),
    Claim("batch-32", "AdaB²N's gain over BN grows with batches of 32", "Sec. 5, Fig. 2",
          lambda preset: gain_of_gains(preset, (("batch_size", preset.large_batch),))),
    Claim("ring", "AdaB²N's gain over BN is alike with reservoir and ring buffer", "App. C, Fig. 5",
          lambda preset: gain_of_gains(preset, (("buffer_mode", "ring"),)), alike=2.0),
    Claim("kappa-lambda", "AdaB²N improves on BN for a wide range of κ and λ", "Sec. 5, Fig. 3",
          range_of_kappa_and_lambda, every=True),
    Claim("forgetting", "AdaB²N forgets less than BN and CN in online Task-IL", "App. C, Table 11", less_forgetting),
    Claim("fine-tuning", "Fine-tuned, AdaB²N is above BN and CN", TABLE_8,
          in_table("table8", "adab2n", "bn", "cn", model="sgd")),
    Claim("joint-training", "Trained jointly, AdaB²N is not above BN: BN is above it", TABLE_8,
          in_table("table8", "bn", "adab2n", model="joint")),
    Claim("offline", "AdaB²N is above BN offline, LiDER included, in most cases", TABLE_4,
          in_table("table4", "adab2n", "bn")),
    Claim("offline-cn", "CN is below BN offline", TABLE_4, in_table("table4", "bn", "cn")),
    Claim("same-forward", "AdaB²N is above BN in the same joint forward, Class-IL", OURS,
          online(ADAB2N, BN_JOINT, studied=True)),
    Claim("bn-joint", "BN gains from a joint forward, Class-IL", OURS, online(BN_JOINT, BN, studied=True)),
    Claim("cn-learned", "CN gains from learning its affine parameters, Class-IL", OURS,
          online(CN_LEARNED, CN, studied=True)),
    Claim("above-cn-learned", "AdaB²N is above CN with learned affine parameters, Class-IL", OURS,
          online(ADAB2N, CN_LEARNED, studied=True)),
)  # fmt: skip
CLAIMS = {claim.id: claim for claim in _CLAIMS}


# --- verdicts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    paired: Paired  # averaged over `cells`
    started: dict[str, Paired]  # the cells with at least one seed
    cells: dict[str, Paired]  # of these, the cells in the mean
    missing: tuple[str, ...] = ()  # the cells without any
    comparisons: tuple[Comparison, ...] = ()  # of `cells`
    is_confirmatory: bool = False  # whether all its seeds are
    records: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the runs of `started`, by name
    dropped: dict[str, list[int]] = field(default_factory=dict)  # of `started`, the seeds that only some runs have

    @property
    def id(self) -> str:
        return self.claim.id

    @property
    def paper(self) -> float | None:
        """The published mean over the same cells, None if the paper lacks one of them."""
        known = [value for each in self.comparisons if (value := published_value(each)) is not None]
        return mean(known) if known and len(known) == len(self.comparisons) else None

    @property
    def fewer(self) -> dict[str, Paired]:
        """The cells that are left out of the mean because they have too few seeds."""
        return {name: cell for name, cell in self.started.items() if name not in self.cells}

    @property
    def share(self) -> str:
        """In how many of the statement's cells a difference was found."""
        means = [cell.mean for cell in self.started.values() if cell.mean is not None]
        above, below = sum(value > 0 for value in means), sum(value < 0 for value in means)
        others = {"below": below, "equal": len(means) - above - below, "no runs": len(self.missing)}
        texts = [f"above in {above} of {len(means) + len(self.missing)} cells"]
        return ", ".join([*texts, *(f"{text} in {count}" for text, count in others.items() if count)])

    @property
    def verdict(self) -> str:
        return self.tendency if self.is_confirmatory and self.has_quorum else NO_VERDICT

    @property
    def has_quorum(self) -> bool:
        return len(self.sufficient) >= max(1, ENOUGH_CELLS * (len(self.started) + len(self.missing)))

    @property
    def sufficient(self) -> dict[str, Paired]:
        """The cells with enough seeds to count for the quorum, or to refute a statement about every cell."""
        return {name: cell for name, cell in self.started.items() if cell.n >= ENOUGH}

    @property
    def tendency(self) -> str:
        """What would be the verdict if there were no quorum."""
        if (margin := self.claim.alike) is not None:
            is_outside = self.lies_between(margin, inf) or self.lies_between(-inf, -margin)
            return HOLDS if self.lies_between(-margin, margin) else FAILS if is_outside else OPEN
        if self.lies_between(-inf, 0) or self.refuting:
            return FAILS
        return OPEN if (self.claim.every and self.against) or not self.lies_between(0, inf) else HOLDS

    def lies_between(self, low: float, high: float) -> bool:
        """Return whether the interval lies between these values, and so does the mean over all cells with runs."""
        if self.paired.interval is None:
            return False
        over_all = mean(cell.mean for cell in self.started.values() if cell.mean is not None)
        return low < self.paired.interval[0] and self.paired.interval[1] < high and low < over_all < high

    @property
    def against(self) -> dict[str, Paired]:
        """The cells whose mean is not above zero."""
        return {name: cell for name, cell in self.started.items() if cell.mean is not None and cell.mean <= 0}

    @property
    def refuting(self) -> list[str]:
        """The cells because of which a statement about every cell does not hold."""
        if not (self.claim.every and self.started):
            return []
        confidence = 1 - (1 - CONFIDENCE) / len(self.started)
        return [name for name, cell in self.sufficient.items() if (cell.interval_at(confidence) or (0, 0))[1] < 0]


def judge(claim: Claim, selection: Selection) -> Verdict:
    comparisons = dict(claim.cells(selection.runs.preset))
    cells = {name: values_by_seed(comparison, selection) for name, comparison in comparisons.items()}
    started = {name: Paired(tuple(values.values())) for name, values in cells.items() if values}
    enough = min(2, max((cell.n for cell in started.values()), default=0))
    counted = {name: cell for name, cell in started.items() if cell.n >= enough}
    experiments = dict.fromkeys(experiment for name in started for experiment in comparisons[name].experiments)
    records = [record for experiment in experiments for record in records_by_seed(experiment, selection).values()]
    dropped = {name: dropped_seeds(comparisons[name], selection) for name in started}
    return Verdict(
        claim,
        averaged([cells[name] for name in counted]),
        started,
        counted,
        missing=tuple(name for name in cells if name not in started),
        comparisons=tuple(comparisons[name] for name in counted),
        is_confirmatory=set(selection.seeds) <= set(CONFIRMATORY_SEEDS),
        records={record["run"]: record for record in records},
        dropped={name: seeds for name, seeds in dropped.items() if seeds},
    )


def judge_all(selection: Selection) -> list[tuple[Verdict, Verdict]]:
    """Return for every statement what all confirmatory seeds say, and what the selection's other seeds say."""
    others = tuple(seed for seed in selection.seeds if seed not in CONFIRMATORY_SEEDS)
    by_seeds = [replace(selection, seeds=seeds) for seeds in (CONFIRMATORY_SEEDS, others)]
    return [(judge(claim, by_seeds[0]), judge(claim, by_seeds[1])) for claim in CLAIMS.values()]


HEAD = ("statement", "source", "verdict", "n", "mean difference", "95 % interval", "wins", "cells", "exploratory seeds")


def words(verdict: Verdict, exploratory: Verdict) -> tuple[str, ...]:
    """Return a pair of `judge_all` as a row under HEAD."""
    claim, paired = verdict.claim, verdict.paired
    difference = "–" if paired.mean is None else f"{paired.mean:+.2f}"
    wins = f"{paired.wins} of {paired.n}" if paired.n else "–"
    interval = paired.interval_text(2)
    row = (claim.statement, claim.source, verdict.verdict, str(paired.n), difference, interval, wins, verdict.share)
    return *row, summary(exploratory)


def summary(verdict: Verdict) -> str:
    """Return the mean difference with its interval, the number of seeds, and in how many cells it was found."""
    return f"{verdict.paired.text(2)}, {verdict.share}" if verdict.started else "no runs"
