"""The paper's statements as data, and what runs say of them.

A statement is about cells, each a sum of results with signs, such as AdaB2N minus BN. The cells of a seed are averaged
first; the verdict is about the mean over seeds and its 95 % t-interval:

    holds           the interval lies above zero (of an "alike" statement: within its margin)
    does not hold   it lies below zero (outside the margin)
    cannot tell     neither, or fewer than two seeds

A statement about every benchmark needs all means above zero, and does not hold where one cell's own interval lies
below it. That interval allows for the number of cells (Bonferroni): of many without a difference, one is often enough
below zero by chance. Where cells have three seeds or more, those with fewer stay out of the mean, but such a statement
needs theirs above zero too. Cells without runs are counted and named; no verdict speaks of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scripts.reproduce.paired import CONFIDENCE, Paired, averaged
from scripts.reproduce.plans import CLASS_IL, METHODS, SETTINGS, TASK_IL, Experiment, faa, title_of
from scripts.reproduce.presets import Preset
from scripts.reproduce.selection import Selection
from scripts.reproduce.studies import JOINT, LEARNED, ONLINE, places

HOLDS, FAILS, OPEN, NO_RUNS = "holds", "does not hold", "cannot tell", "no runs"
ENOUGH = 3  # seeds: as many as the paper has
FORGETTING = ("results", TASK_IL, "metrics", "forgetting_as_published")


@dataclass(frozen=True)
class Difference:
    """One cell of a statement: results, added up with their signs."""

    name: str
    terms: tuple[tuple[int, Experiment], ...]
    metric: tuple[str, ...]


@dataclass(frozen=True)
class Claim:
    id: str
    statement: str
    source: str  # where the paper says so, or that it is our question
    cells: Callable[[Preset], Iterator[Difference]]
    every: bool = False  # it speaks of every cell, not of their average
    alike: float | None = None  # points within which it calls two things alike; the margin is ours


CLAIMS: dict[str, Claim] = {}


def claim(id: str, statement: str, source: str, **facts):
    def register(cells):
        CLAIMS[id] = Claim(id, statement, source, cells, **facts)
        return cells

    return register


# --- cells ------------------------------------------------------------------------------------------------------------


def online(preset: Preset, one: str, other: str, metric: tuple[str, ...], flags=()) -> Iterator[Difference]:
    """One norm minus another, with both online methods, on every data set and memory size."""
    for model in ONLINE:
        for key in ("cifar10", "cifar100", "miniimg"):
            for buffer in preset.data[key].buffers if key in preset.data else ():
                first, second = (Experiment(model, norm, key, buffer, flags) for norm in (one, other))
                yield Difference(_place(preset, model, key, buffer), ((1, first), (-1, second)), metric)


def _place(preset: Preset, model: str, key: str, buffer: int) -> str:
    return f"{METHODS[model]}, {preset.data[key].title}, M = {buffer}"


def flipped(cells: Iterator[Difference]) -> Iterator[Difference]:
    for cell in cells:
        yield Difference(cell.name, tuple((-sign, one) for sign, one in cell.terms), cell.metric)


def gain_of_gains(preset: Preset, flags) -> Iterator[Difference]:
    """AdaB2N's gain over BN with these flags minus that without them, Class-IL."""
    with_flags = online(preset, "adab2n", "bn", faa(CLASS_IL), flags)
    for there, here in zip(with_flags, flipped(online(preset, "adab2n", "bn", faa(CLASS_IL))), strict=True):
        yield Difference(there.name, (*there.terms, *here.terms), there.metric)


# --- the statements, in the paper's order -----------------------------------------------------------------------------


@claim("class-il", "AdaB²N is above BN in online Class-IL on every benchmark", "Sec. 5, Table 3", every=True)
def class_il(preset):
    yield from online(preset, "adab2n", "bn", faa(CLASS_IL))


@claim("task-il", "AdaB²N is above BN in online Task-IL on every benchmark", "Sec. 5, Table 2", every=True)
def task_il(preset):
    yield from online(preset, "adab2n", "bn", faa(TASK_IL))


@claim("above-cn", "AdaB²N is above CN in online Class-IL over a range of memory sizes", "Sec. 5, Table 3", every=True)
def above_cn(preset):
    yield from online(preset, "adab2n", "cn", faa(CLASS_IL))


@claim("cn", "CN is moderately above BN in online Class-IL", "Sec. 5, Table 3")
def cn(preset):
    yield from online(preset, "cn", "bn", faa(CLASS_IL))


def _below_bn(norm: str) -> None:
    @claim(f"below-{norm}", f"BN is above {title_of(norm)} in online Class-IL", "Sec. 5, Table 3")
    def cells(preset):
        yield from online(preset, "bn", norm, faa(CLASS_IL))


for _norm in ("gn", "ln", "in"):
    _below_bn(_norm)


@claim("batch-32", "AdaB²N's gain over BN grows with batches of 32", "Sec. 5, Fig. 2")
def batch_32(preset):
    yield from gain_of_gains(preset, (("batch_size", preset.large_batch),))


@claim("ring", "AdaB²N's gain over BN is alike with reservoir and ring buffer", "App. C, Fig. 5", alike=2.0)
def ring(preset):
    yield from gain_of_gains(preset, (("buffer_mode", "ring"),))


@claim("kappa-lambda", "AdaB²N improves on BN for a wide range of κ and λ", "Sec. 5, Fig. 3", every=True)
def kappa_lambda(preset):
    data = preset.data["cifar100"]
    for kappa in preset.kappas:
        for lambd in data.lambdas:
            flags = (("kappa", kappa), ("lambd", lambd))
            ours = Experiment("derpp", "adab2n", "cifar100", data.buffers[0], flags)
            bn = Experiment("derpp", "bn", "cifar100", data.buffers[0])
            yield Difference(f"κ = {kappa:g}, λ = {lambd:g}", ((1, ours), (-1, bn)), faa(CLASS_IL))


@claim("forgetting", "AdaB²N forgets less than BN and CN in online Task-IL", "App. C, Table 11")
def forgetting(preset):
    for norm in ("bn", "cn"):
        for cell in online(preset, norm, "adab2n", FORGETTING):
            yield Difference(f"{cell.name}, {title_of(norm)}", cell.terms, cell.metric)


def _of_table8(preset: Preset, model: str, others: tuple[str, ...]) -> Iterator[Difference]:
    for key in ("cifar10", "cifar100-10"):
        for norm in others if key in preset.data else ():
            for setting, title in SETTINGS.items():
                terms = ((1, Experiment(model, "adab2n", key)), (-1, Experiment(model, norm, key)))
                yield Difference(f"{preset.data[key].title}, {title}, {title_of(norm)}", terms, faa(setting))


@claim("fine-tuning", "Fine-tuned, AdaB²N is above BN and CN", "App. C, Table 8")
def fine_tuning(preset):
    yield from _of_table8(preset, "sgd", ("bn", "cn"))


@claim("joint-training", "Trained jointly, AdaB²N is not above BN: BN is above it", "App. C, Table 8")
def joint_training(preset):
    yield from flipped(_of_table8(preset, "joint", ("bn",)))


def _offline(preset: Preset, one: str, other: str) -> Iterator[Difference]:
    key = "miniimg" if "miniimg" in preset.data else "offline"
    flags = (("scenario", "offline"), *preset.offline.items())
    for model in METHODS:
        for setting, title in SETTINGS.items():
            ours, theirs = (Experiment(model, norm, key, preset.data[key].buffers[0], flags) for norm in (one, other))
            yield Difference(f"{METHODS[model]}, {title}", ((1, ours), (-1, theirs)), faa(setting))


@claim("offline", "AdaB²N is above BN offline, LiDER included, in most cases", "Sec. 5, Table 4")
def offline(preset):
    yield from _offline(preset, "adab2n", "bn")


@claim("offline-cn", "CN is below BN offline", "Sec. 5, Table 4")
def offline_cn(preset):
    yield from _offline(preset, "bn", "cn")


# --- our questions ----------------------------------------------------------------------------------------------------


def _studied(preset: Preset, first: tuple, second: tuple) -> Iterator[Difference]:
    for model in ONLINE:
        for key, buffer, _ in places(preset):
            one, other = (Experiment(model, norm, key, buffer, flags) for norm, flags in (first, second))
            yield Difference(_place(preset, model, key, buffer), ((1, one), (-1, other)), faa(CLASS_IL))


@claim("same-forward", "AdaB²N is above BN in the same joint forward, Class-IL", "our question")
def same_forward(preset):
    yield from _studied(preset, ("adab2n", ()), ("bn", JOINT))


@claim("bn-joint", "BN gains from a joint forward, Class-IL", "our question")
def bn_joint(preset):
    yield from _studied(preset, ("bn", JOINT), ("bn", ()))


@claim("cn-learned", "CN gains from learning its affine parameters, Class-IL", "our question")
def cn_learned(preset):
    yield from _studied(preset, ("cn", LEARNED), ("cn", ()))


@claim("above-cn-learned", "AdaB²N is above CN with learned affine parameters, Class-IL", "our question")
def above_cn_learned(preset):
    yield from _studied(preset, ("adab2n", ()), ("cn", LEARNED))


# --- verdicts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    paired: Paired  # averaged over `cells`
    started: dict[str, Paired]  # the cells that have a seed or more
    cells: dict[str, Paired]  # of these, those that have enough
    missing: tuple[str, ...]  # the cells that have none

    @property
    def fewer(self) -> dict[str, Paired]:
        return {name: cell for name, cell in self.started.items() if name not in self.cells}

    @property
    def share(self) -> str:
        return f"{len(self.cells)} of {len(self.started) + len(self.missing)}"

    @property
    def verdict(self) -> str:
        if not self.cells:
            return NO_RUNS
        if self.paired.interval is None:
            return OPEN
        if self.claim.alike is not None:
            return self._alike(*self.paired.interval)
        everywhere = self.started.values() if self.claim.every else ()
        if self.paired.is_below or self.refuting:
            return FAILS
        return HOLDS if self.paired.is_above and all(cell.mean > 0 for cell in everywhere) else OPEN

    @property
    def refuting(self) -> list[str]:
        """The cells by which a statement about every one of them does not hold."""
        if not self.claim.every:
            return []
        confidence = 1 - (1 - CONFIDENCE) / len(self.started)
        return [name for name, cell in self.started.items() if (cell.interval_at(confidence) or (0, 0))[1] < 0]

    def _alike(self, low: float, high: float) -> str:
        margin = self.claim.alike
        if -margin <= low and high <= margin:
            return HOLDS
        return FAILS if low > margin or high < -margin else OPEN


def judge(claim: Claim, selection: Selection) -> Verdict:
    by_seed = {cell.name: _by_seed(cell, selection) for cell in claim.cells(selection.runs.preset)}
    enough = min(ENOUGH, max(map(len, by_seed.values()), default=0))
    counted = {name: seeds for name, seeds in by_seed.items() if seeds and len(seeds) >= enough}
    started = {name: Paired(tuple(seeds.values())) for name, seeds in by_seed.items() if seeds}
    return Verdict(
        claim,
        averaged(list(counted.values())),
        started,
        cells={name: cell for name, cell in started.items() if name in counted},
        missing=tuple(name for name in by_seed if name not in started),
    )


def _by_seed(cell: Difference, selection: Selection) -> dict[int, float]:
    """The difference for every seed whose runs are all finished."""
    values: dict[int, float] = {}
    finals = [selection.final(experiment) for _, experiment in cell.terms]
    for index, seed in enumerate(selection.seeds):
        records = [None if runs is None else selection.runs.record(runs[index]) for runs in finals]
        if None not in records:
            values[seed] = sum(
                sign * _value(record, cell.metric) for (sign, _), record in zip(cell.terms, records, strict=True)
            )
    return values


def _value(record: dict, metric: tuple[str, ...]) -> float:
    for key in metric:
        record = record[key]
    return record


HEAD = ("statement", "source", "verdict", "n", "mean difference", "95 % interval", "wins", "cells")


def words(verdict: Verdict) -> tuple[str, ...]:
    """A line under HEAD."""
    claim, paired = verdict.claim, verdict.paired
    interval = "–" if paired.interval is None else f"[{paired.interval[0]:+.2f}, {paired.interval[1]:+.2f}]"
    difference = "–" if paired.mean is None else f"{paired.mean:+.2f}"
    wins = f"{paired.wins} of {paired.n}" if paired.n else "–"
    return claim.statement, claim.source, verdict.verdict, str(paired.n), difference, interval, wins, verdict.share
