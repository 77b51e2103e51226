"""What the normalization statistics cost: final networks that were evaluated with other statistics than their own.

The runs are the confirmatory ones, with `--final_statistics`. Two kinds of statistics are compared in the same network,
two norms by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from models.method import Method
from models.replay import draw_sizes
from utils.config.registry import MODELS
from utils.config.resolve import Config
from utils.run.training import steps_per_task
from utils.studies.compare import Paired, averaged, records_by_seed
from utils.studies.confirm import CONFIRM, CONFIRMATORY_SEEDS
from utils.studies.plans import CLASS_IL, TASK_IL
from utils.studies.selection import Selection
from utils.tables import TITLES, markdown_table
from utils.theory import ETA, kappa_weights

KINDS = {"buffer": "buffer", "balanced": "balanced", "train": "training", "test": "test", "last_task": "last task"}
OURS, BASELINES = "AdaB²N, joint", ("BN, separate", "BN, joint")
FEWEST_SEEDS = 3  # with fewer, nothing is called clear
ALL, EARLIER, LAST = slice(None), slice(-1), slice(-1, None)  # tasks

Values = dict[int, float]  # by seed


@dataclass(frozen=True)
class Arm:
    """The networks of a norm with one kind of forward pass, trained by one method on one data set, by seed."""

    method: str
    data: str  # with the memory size
    name: str  # norm and forward pass
    norm: str
    forward: str  # joint, separate or, without replay, ""
    records: dict[int, dict[str, Any]]
    dataset: str
    settings: list[str]
    last_task_weight: float

    @property
    def cell(self) -> str:
        return f"{self.method}, {self.data}"

    def accuracy(self, setting: str, kind: str, tasks: slice = ALL) -> Values:
        """Return the mean accuracy on these tasks with a kind of statistics, for every seed that has it."""
        rows = {seed: record["results"][setting]["final_statistics"].get(kind) for seed, record in self.records.items()}
        return {seed: fmean(row[tasks]) for seed, row in rows.items() if row}

    def change(self, setting: str, kind: str, other: str = "running", tasks: slice = ALL) -> Values:
        """Return the accuracy with a kind of statistics minus that with another kind in the same network."""
        return minus(self.accuracy(setting, kind, tasks), self.accuracy(setting, other, tasks))


def minus(ours: Values, theirs: Values) -> Values:
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def arms_with_statistics(selection: Selection) -> list[Arm]:
    """Return the arms of the confirmatory runs that have records with final statistics, cell by cell.

    Joint training has none: without tasks one after the other, there is no recency.
    """
    selection, arms = replace(selection, seeds=CONFIRMATORY_SEEDS), []
    cells = [cell for plan in CONFIRM.values() for cell in plan.cells(selection.runs.preset)]
    for experiment, cell in {cell.experiment: cell for cell in cells}.items():
        records = {seed: record for seed, record in records_by_seed(experiment, selection).items() if has_kinds(record)}
        if records and experiment.model != "joint":
            first = next(iter(records.values()))
            config, settings = first["config"], list(first["results"])
            forward = config.get("replay_forward", "")
            norm = cell.row.partition(" w/ ")[2].removesuffix(", joint").removesuffix(", separate")
            arms.append(Arm(cell.group, cell.column[0], joined(norm, forward), experiment.norm, forward, records,
                            config["dataset"], settings, last_task_weight(first)))  # fmt: skip
    order = list(dict.fromkeys(arm.cell for arm in arms))
    return sorted(arms, key=lambda arm: order.index(arm.cell))


def joined(*names: str) -> str:
    return ", ".join(filter(None, names))


def has_kinds(record: dict[str, Any]) -> bool:
    """Return whether a record has accuracies with several kinds of statistics; norms without running ones have none."""
    return all(part.get("final_statistics", {}).get("running") for part in record["results"].values())


def last_task_weight(record: dict[str, Any]) -> float:
    """Return the last task's weight in the running statistics by Theorem 1.

    With separate forward passes, every pass is a batch, that of the current samples first. The passes of a step weigh
    as one batch does with a larger κ, of which the current samples have a share that depends on the momentum.
    """
    config, options = Config(**record["config"]), record["config"]
    method: type[Method] = MODELS.get(config.model).build
    lengths = [steps_per_task(config, size) for size in record["data"]["train_sizes"]]
    draws = draw_sizes(config, len(method.draw_names), len(lengths))
    kappa, eta = options.get("kappa", 1.0), options.get("eta", ETA)
    share = config.batch_size / (config.batch_size + sum(draws))
    if options.get("replay_forward") == "separate":
        kept = [(1 - eta) ** (kappa * later) for later in range(1 + len(draws))]
        share, kappa = kept[-1] / sum(kept), kappa * len(kept)
    return float(kappa_weights(kappa, lengths, share, eta)[-1])


# --- docs/statistics.md -----------------------------------------------------------------------------------------------


def page_values(selection: Selection) -> dict[str, Any]:
    """Return what the template of the page shows."""
    arms = arms_with_statistics(selection)
    groups, pairs = groups_by_forward(arms), {baseline: pairs_with(arms, baseline) for baseline in BASELINES}
    return {
        "arms": arms, "titles": TITLES, "fewest": FEWEST_SEEDS, "number": text_of, "reading": reading,
        "gains": gains_over_cells(pairs), "table_of_gains": table_of_gains(pairs),
        "recency": recency_sentences(groups), "table_of_recency": table_of_recency(groups),
        "kappa_effect": max((abs(ours.last_task_weight - theirs.last_task_weight)  # that AdaB²N's momentum makes
                             for ours, theirs in pairs["BN, joint"]), default=0.0),
    }  # fmt: skip


def text_of(difference: Paired, n: int | None = None) -> str:
    """Return mean and half the interval, and the number of seeds if it is not `n`."""
    if difference.mean is None:
        return "–"
    spread = f" ± {(difference.interval[1] - difference.interval[0]) / 2:.1f}" if difference.interval else ""
    mean = round(difference.mean, 1) + 0.0  # never -0.0
    return f"{mean:+.1f}{spread}" + ("" if difference.n == n else f" (n = {difference.seeds_text})")


def reading(difference: Paired) -> str:
    """Return whether a difference is clear."""
    if difference.n < FEWEST_SEEDS:
        return "too few seeds to tell"
    return "clear" if difference.is_above or difference.is_below else "unclear"


def cost(running: Paired, by_group: Sequence[Paired]) -> str:
    """Return whether recency in the running statistics costs accuracy over all arms, as the protocol says."""
    if running.n < FEWEST_SEEDS or running.is_below:
        return reading(running)
    if any(each.is_below and reading(each) == "clear" for each in by_group):
        return "no clear cost over all arms"
    return "no clear cost, so the paper's explanation is not supported at this scale"


def tally(differences: Sequence[Paired]) -> str:
    """Return how many differences are above and below zero, and how many of these are clear."""
    texts = []
    for direction, sign in (("higher", 1), ("lower", -1)):
        members = [each for each in differences if sign * (each.mean or 0.0) > 0]
        clear = sum(reading(each) == "clear" for each in members)
        texts.append(f"{direction} in {len(members)}" + (f" ({clear} clear)" if clear else ""))
    return f"{' and '.join(texts)} of {len(differences)} groups"


Pair = tuple[Arm, Arm]  # AdaB²N and a baseline in one cell


def pairs_with(arms: Sequence[Arm], baseline: str) -> list[Pair]:
    pairs = product(arms, arms)
    return [(ours, bn) for ours, bn in pairs if (ours.name, bn.name) == (OURS, baseline) and ours.cell == bn.cell]


def gains(pair: Pair, setting: str) -> list[Values]:
    """Return AdaB²N minus the baseline with running statistics, with the buffer's, and the second minus the first."""
    running, buffer = (minus(*(arm.accuracy(setting, kind) for arm in pair)) for kind in ("running", "buffer"))
    return [running, buffer, minus(buffer, running)]


def gains_over_cells(pairs: dict[str, list[Pair]]) -> dict[str, dict[str, list[Paired]]]:
    """Return the means over cells of `gains`, by setting and baseline."""
    means: dict[str, dict[str, list[Paired]]] = {}
    for setting, (baseline, of_baseline) in product(TITLES, pairs.items()):
        members = [pair for pair in of_baseline if setting in pair[0].settings]
        columns = zip(*(gains(pair, setting) for pair in members), strict=True)
        if over_cells := [averaged(values, [ours.dataset for ours, _ in members]) for values in columns]:
            means.setdefault(setting, {})[baseline] = over_cells
    return means


def table_of_gains(pairs: dict[str, list[Pair]]) -> str:
    rows = []
    for baseline, pair in ((baseline, pair) for baseline, of_baseline in pairs.items() for pair in of_baseline):
        by_setting = [[averaged([values]) for values in gains(pair, setting)] for setting in pair[0].settings]
        n = by_setting[0][0].n
        texts = [" / ".join(text_of(each, n) for each in column) for column in zip(*by_setting, strict=True)]
        rows.append([pair[0].cell, baseline, str(n), *texts])
    return markdown_table(["cell", "over", "n", "running", "buffer", "change"], rows)


@dataclass(frozen=True)
class Group:
    """Arms of a method with one kind of forward pass, and what recency in their statistics does."""

    title: str
    settings: tuple[str, ...]
    arms: list[Arm]

    def mean(self, value: Callable[[Arm], Values]) -> Paired:
        """Return the mean over arms."""
        return averaged([value(arm) for arm in self.arms], [arm.dataset for arm in self.arms])

    def change(self, setting: str, kind: str, tasks: slice = ALL) -> Paired:
        """Return the accuracy with a kind of statistics minus that with those of all training images."""
        return self.mean(lambda arm: arm.change(setting, kind, "train", tasks))


def groups_by_forward(arms: Sequence[Arm]) -> list[Group]:
    groups: dict[tuple[str, tuple[str, ...]], list[Arm]] = {}
    for arm in arms:
        groups.setdefault((joined(arm.method, arm.forward), tuple(arm.settings)), []).append(arm)
    return [Group(*key, members) for key, members in groups.items()]


def bias(kind: str, arm: Arm) -> Values:
    """Return the Class-IL accuracy on the last task minus that on earlier ones, with a kind of statistics."""
    return minus(*(arm.accuracy(CLASS_IL, kind, tasks) for tasks in (LAST, EARLIER)))


def recency_sentences(groups: Sequence[Group]) -> Iterator[str]:
    """Yield what recency does in each setting, and how Class-IL differs from Task-IL."""
    for setting in TITLES:
        if members := [group for group in groups if setting in group.settings]:
            every = Group("", (setting,), [arm for group in members for arm in group.arms])
            running, *by_group = [group.change(setting, "running") for group in (every, *members)]
            last, *by_group_last = [group.change(setting, "last_task") for group in (every, *members)]
            yield (f"{TITLES[setting]}, {len(every.arms)} arms. Running statistics: {text_of(running)}, "
                   f"{cost(running, by_group)}; {tally(by_group)}. The last task's statistics: "
                   f"{text_of(last)}, {reading(last)}; {tally(by_group_last)}")  # fmt: skip
    biases, contrasts = [], []
    for group in (group for group in groups if CLASS_IL in group.settings):
        *others, last = (group.mean(partial(bias, kind)) for kind in ("train", "running", "last_task"))
        biases.append(f"{group.title}: {', '.join([*(text_of(each, last.n) for each in others), text_of(last)])}")
        contrast = group.mean(
            lambda arm: minus(*(arm.change(setting, "last_task", "train") for setting in (CLASS_IL, TASK_IL)))
        )
        contrasts.append(f"{group.title}: {text_of(contrast)}")
    if biases:
        yield ("Bias towards recent classes: Class-IL accuracy on the last task minus that on earlier ones, with "
               f"training, running and the last task's statistics. {'; '.join(biases)}")  # fmt: skip
        yield f"What the last task's statistics change in Class-IL minus what in Task-IL. {'; '.join(contrasts)}"


def table_of_recency(groups: Sequence[Group]) -> str:
    rows = []
    kinds = (("running", ALL), ("last_task", ALL), ("last_task", EARLIER), ("last_task", LAST))
    for group in groups:
        weights = sorted(f"{arm.last_task_weight:.2f}" for arm in group.arms)
        first = group.change(group.settings[0], "running")
        columns = [[text_of(group.change(setting, *kind), first.n) for setting in group.settings] for kind in kinds]
        span = " to ".join(dict.fromkeys((weights[0], weights[-1])))
        rows.append([group.title, str(len(group.arms)), first.seeds_text, span, *map(" / ".join, columns)])
    heads = ["weight", "running", "last task", "last task: on earlier tasks", "last task: on the last task"]
    return markdown_table(["method, forward", "arms", "n", *heads], rows)
