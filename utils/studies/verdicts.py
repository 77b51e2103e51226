"""What runs say of statements: docs/protocol.md has the analysis, the verdicts, and the rule that a statement holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from statistics import harmonic_mean, mean
from typing import Any

import numpy as np

from utils.studies.claims import ABOVE, ALIKE, CLAIMS, NOT_ABOVE, Claim
from utils.studies.compare import CONFIDENCE, Paired, averaged, dropped_seeds, records_by_seed, values_by_seed
from utils.studies.confirm import CONFIRMATORY_SEEDS, TITLES
from utils.studies.plans import Comparison
from utils.studies.results import published_difference
from utils.studies.selection import Selection

BELOW, EQUIVALENT, SMALLER = "below", "equivalent", "smaller than published"  # verdicts, beside ABOVE
HOLDS, FAILS, OPEN, NO_VERDICT = "holds", "does not hold", "inconclusive", "no verdict"
MARGIN = 2.0  # points within which two things are equivalent
ENOUGH_SEEDS = 3  # in a cell
ENOUGH_CELLS = 1 / 3  # of a statement
MOST_SEEDS = 1000  # that are considered for a decision


@dataclass(frozen=True)
class Verdict:
    """What some seeds say of a statement."""

    claim: Claim
    values: dict[str, dict[int, float]]  # differences by cell and seed, of the cells with runs
    comparisons: dict[str, list[Comparison]]  # of all cells
    blocks: dict[str, str]  # the data set of every cell: within it, the cells of a seed may be correlated
    diverged: tuple[str, ...] = ()  # cells of which a run diverged
    has_published_data: bool = False
    is_confirmatory: bool = False  # whether all seeds are
    corrected_p: float | None = None  # by Holm's method, of statements with a quorum
    records: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the runs of the cells, by name
    dropped: dict[str, list[int]] = field(default_factory=dict)  # by cell, the seeds that only some runs have

    @property
    def id(self) -> str:
        return self.claim.id

    @property
    def cells(self) -> dict[str, Paired]:
        return {name: Paired(tuple(values.values())) for name, values in self.values.items()}

    @cached_property
    def difference(self) -> Paired:
        return averaged([*self.values.values()], [self.blocks[name] for name in self.values])

    @cached_property
    def published(self) -> Paired | None:
        """The paper's difference in the same cells, or in all if none has runs; None if it lacks one of them."""
        groups = [self.comparisons[name] for name in self.values or self.comparisons]
        return published_difference(groups) if self.has_published_data else None

    # --- by method ---

    @property
    def by_method(self) -> dict[str, Verdict]:
        """What the cells of each method say, by the method's title."""
        methods = {name: TITLES[self.comparisons[name][0].experiments[0].model] for name in self.values}
        return {method: replace(self, values={n: v for n, v in self.values.items() if methods[n] == method})
                for method in dict.fromkeys(methods.values())}  # fmt: skip

    @property
    def differs_by_method(self) -> bool:
        """Whether there are two methods, and the interval of their difference excludes zero."""
        if len(self.by_method) != 2:
            return False
        first, second = (part.values for part in self.by_method.values())
        weights = [1 / len(first) if name in first else -1 / len(second) for name in self.values]
        contrast = averaged([*self.values.values()], [self.blocks[name] for name in self.values], weights)
        return contrast.is_above or contrast.is_below

    # --- what follows, by docs/protocol.md ---

    @property
    def has_quorum(self) -> bool:
        enough = [values for values in self.values.values() if len(values) >= ENOUGH_SEEDS]
        return len(enough) >= max(1, ENOUGH_CELLS * len(self.comparisons))

    @property
    def findings(self) -> list[str]:
        """The verdicts that apply; none if it is inconclusive."""
        p = self.difference.p if self.corrected_p is None else self.corrected_p
        is_significant = p is not None and p < 1 - CONFIDENCE
        findings = []
        if is_significant and (self.difference.is_above or self.difference.is_below):
            findings = [ABOVE if self.difference.is_above else BELOW]
        elif self.lies_between(-MARGIN, MARGIN):
            findings = [EQUIVALENT]
        if self.published and self.difference.minus(self.published).is_below:
            findings.append(SMALLER)
        return findings

    def lies_between(self, low: float, high: float) -> bool:
        interval = self.difference.interval
        return interval is not None and low < interval[0] and interval[1] < high

    @property
    def tendency(self) -> str:
        """What the conclusion would be if every seed counted and a quorum were not needed."""
        if self.claim.says == ALIKE:
            is_outside = self.lies_between(MARGIN, math.inf) or self.lies_between(-math.inf, -MARGIN)
            return HOLDS if self.lies_between(-MARGIN, MARGIN) else FAILS if is_outside else OPEN
        if self.claim.says == NOT_ABOVE:
            return FAILS if ABOVE in self.findings else HOLDS if self.lies_between(-math.inf, MARGIN) else OPEN
        cells_above = sum(value > 0 for value in self.means)
        if ABOVE in self.findings and cells_above > len({*self.values, *self.diverged}) / 2:
            return HOLDS
        return FAILS if {BELOW, EQUIVALENT} & {*self.findings} else OPEN

    @property
    def conclusion(self) -> str:
        return self.tendency if self.is_confirmatory and self.has_quorum else NO_VERDICT

    @property
    def means(self) -> list[float]:
        """The differences of the cells in which no run diverged."""
        return [mean(values.values()) for name, values in self.values.items() if name not in self.diverged]

    @property
    def seeds_to_decide(self) -> int | None:
        """The seeds per cell with which the interval would exclude zero or lie within the margin.

        Mean and spread are taken as observed. None if there is no interval, or it does so already.
        """
        if self.difference.estimate is None or self.difference.interval is None:
            return None
        from scipy.stats import t

        (center, error, df), now = self.difference.estimate, harmonic_mean(self.difference.cell_sizes)
        n = np.arange(math.ceil(now), MOST_SEEDS)
        halves = t.isf((1 - CONFIDENCE) / 2, df * (n - 1) / (now - 1)) * error * np.sqrt(now / n)
        decisive = n[halves < max(abs(center), MARGIN - abs(center))]
        return int(decisive[0]) if len(decisive) and decisive[0] > now else None

    # --- as text ---

    @property
    def verdict(self) -> str:
        """The verdicts that apply, or what keeps them from applying."""
        if not self.has_quorum:
            return "no quorum" if self.values else "no runs"
        if self.findings or self.difference.interval is None:
            return ", ".join(self.findings) or OPEN
        if self.difference.is_above or self.difference.is_below:
            return f"{OPEN} (after correction)"
        return f"{OPEN} ({self.seeds_to_decide or f'more than {MOST_SEEDS}'} seeds would decide)"

    @property
    def share(self) -> str:
        """In how many of the statement's cells a difference was found."""
        above, below = sum(value > 0 for value in self.means), sum(value < 0 for value in self.means)
        others = {"below": below, "equal": len(self.means) - above - below, "diverged": len(self.diverged),
                  "no runs": len(self.comparisons.keys() - {*self.values, *self.diverged})}  # fmt: skip
        texts = [f"{text} in {count}" for text, count in others.items() if count]
        return ", ".join([f"above in {above} of {len(self.comparisons)} cells", *texts])

    @property
    def summary(self) -> str:
        """The verdict, the mean difference with its interval, and in how many cells it was found."""
        return f"{self.verdict}; {self.difference.text(2)}, {self.share}" if self.values else self.verdict


def judge(claim: Claim, selection: Selection) -> Verdict:
    preset = selection.runs.preset
    comparisons: dict[str, list[Comparison]] = {}
    for name, comparison in claim.cells(preset):
        comparisons.setdefault(name, []).append(comparison)
    values = {}
    for name, group in comparisons.items():
        first, *others = (values_by_seed(each, selection) for each in group)
        seeds = [seed for seed in first if all(seed in other for other in others)]
        if seeds:
            values[name] = {seed: mean(part[seed] for part in (first, *others)) for seed in seeds}
    experiments = {name: list(dict.fromkeys(e for each in group for e in each.experiments))
                   for name, group in comparisons.items()}  # fmt: skip
    started = dict.fromkeys(chain(*(experiments[name] for name in values)))
    records = [record for experiment in started for record in records_by_seed(experiment, selection).values()]
    dropped = {name: sorted({*chain(*(dropped_seeds(each, selection) for each in comparisons[name]))})
               for name in values}  # fmt: skip
    return Verdict(
        claim, values, comparisons,
        blocks={name: preset.data[group[0].data].flags["dataset"] for name, group in experiments.items()},
        diverged=tuple(name for name, group in experiments.items()
                       if any(selection.runs.has_diverged(run) for e in group for run in selection.final(e) or ())),
        has_published_data=all(preset.has_published_data(e.data) for e in chain(*experiments.values())),
        is_confirmatory=set(selection.seeds) <= set(CONFIRMATORY_SEEDS),
        records={record["run"]: record for record in records},
        dropped={name: seeds for name, seeds in dropped.items() if seeds},
    )  # fmt: skip


def judge_all(selection: Selection) -> list[tuple[Verdict, Verdict]]:
    """Return for every statement what all confirmatory seeds say, and what the selection's other seeds say."""
    others = tuple(seed for seed in selection.seeds if seed not in CONFIRMATORY_SEEDS)
    confirmatory, exploratory = (
        correct_p_values([judge(claim, replace(selection, seeds=seeds)) for claim in CLAIMS.values()])
        for seeds in (CONFIRMATORY_SEEDS, others)
    )
    return list(zip(confirmatory, exploratory, strict=True))


def correct_p_values(verdicts: list[Verdict]) -> list[Verdict]:
    """Return the verdicts with p-values by Holm's method: the paper's statements are one family, ours another."""
    p_values: dict[str, float] = {}
    for is_ours in (False, True):
        family = [(p, verdict.id) for verdict in verdicts if verdict.claim.is_ours == is_ours
                  and verdict.has_quorum and (p := verdict.difference.p) is not None]  # fmt: skip
        largest = 0.0
        for rank, (p, id) in enumerate(sorted(family)):
            p_values[id] = largest = max(largest, min(1.0, p * (len(family) - rank)))
    return [replace(verdict, corrected_p=p_values.get(verdict.id)) for verdict in verdicts]


HEAD = ("statement", "source", "conclusion", "verdict", "paper", "ours", "cells", "other seeds")


def table_row(verdict: Verdict, exploratory: Verdict) -> tuple[str, ...]:
    """Return a pair of `judge_all` as a row under HEAD."""
    claim = verdict.claim
    published = (verdict if verdict.values else exploratory).published
    return (claim.statement, claim.source, verdict.conclusion, verdict.verdict, published.text(2) if published else "–",
            verdict.difference.text(2), verdict.share, exploratory.summary)  # fmt: skip
