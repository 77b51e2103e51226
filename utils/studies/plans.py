"""The tables and figures of the paper as plans: which cells they have, and which experiments stand behind each cell.

A plan is a function from a preset to cells. Plans share runs where they share experiments: Tables 2, 3 and 11 need the
same runs. A new table or figure is one more function here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from utils.config.registry import MODELS
from utils.studies.presets import Preset

NORMS = {"bn": "BN", "ln": "LN", "in": "IN", "gn": "GN", "cn": "CN", "adab2n": "AdaB²N"}
METHODS = {"er_ace": "ER-ACE", "derpp": "DER++", "er_ace_lider": "LiDER"}
SMALLER_IS_BETTER = ("forgetting", "forgetting_as_published", "seconds")  # of a record's numbers
TASK_IL, CLASS_IL, DOMAIN_IL = "task_il", "class_il", "domain_il"
SETTINGS = {TASK_IL: "Task-IL", CLASS_IL: "Class-IL"}
ONLINE = ("er_ace", "derpp")  # the methods of the online tables

Flags = tuple[tuple[str, Any], ...]
JOINT: Flags = (("replay_forward", "joint"),)
SEPARATE: Flags = (("replay_forward", "separate"),)
LEARNED: Flags = (("cn_affine", "learned"),)
WEIGHTS_ALONE: Flags = (("kappa", 1.0), ("lambd", 0.0))  # AdaB2N's task weights without its other parts


@dataclass(frozen=True)
class Experiment:
    """One configuration for all seeds. AdaB2N's kappa and lambda are chosen (`--select`) unless `flags` name them."""

    model: str
    norm: str
    data: str
    buffer: int | None = None
    flags: Flags = ()


@dataclass(frozen=True)
class Comparison:
    """A sum of results with signs, such as AdaB2N minus BN; a single result is a sum with one term."""

    terms: tuple[tuple[int, Experiment], ...]
    metric: tuple[str, ...]  # path in a record

    @property
    def experiments(self) -> list[Experiment]:
        return [experiment for _, experiment in self.terms]

    def total(self, numbers: Sequence[float | None]) -> float | None:
        """Return the signed sum of the terms' numbers, None if one is missing."""
        known = [number for number in numbers if number is not None]
        if len(known) < len(self.terms):
            return None
        return sum(sign * number for (sign, _), number in zip(self.terms, known, strict=True))


@dataclass(frozen=True)
class Cell:
    """A number of a table: a metric of an experiment, or its difference to a baseline."""

    group: str  # rows of one group are compared with each other
    row: str
    column: tuple[str, ...]  # the levels of the head
    experiment: Experiment
    metric: tuple[str, ...]  # path in a record
    published: tuple[str, str, str] | None = None  # table, row and column in results/paper
    baseline: Experiment | None = None

    @property
    def comparison(self) -> Comparison:
        terms: tuple[tuple[int, Experiment], ...] = ((1, self.experiment),)
        return Comparison(terms if self.baseline is None else (*terms, (-1, self.baseline)), self.metric)

    @property
    def smaller_is_better(self) -> bool:
        return self.metric[-1] in SMALLER_IS_BETTER


@dataclass(frozen=True)
class Plan:
    id: str
    title: str
    cells: Callable[[Preset], Iterator[Cell]]
    note: str = ""
    first_seed_only: bool = False  # a figure of single runs, whose recordings are large
    seeds: tuple[int, ...] = ()  # if the plan has seeds of its own


Cells = Callable[[Preset], Iterator[Cell]]
PLANS: dict[str, Plan] = {}


def title_of(norm: str) -> str:
    return NORMS.get(norm, norm)


def in_paper(norm: str) -> str:
    return "Ours" if norm == "adab2n" else title_of(norm)


def plan(id: str, title: str, **facts: Any) -> Callable[[Cells], Cells]:
    def register(cells: Cells) -> Cells:
        PLANS[id] = Plan(id, title, cells, **facts)
        return cells

    return register


def faa(setting: str) -> tuple[str, ...]:
    return ("results", setting, "metrics", "faa")


ALL_DATA = ("cifar10", "cifar100", "cifar100-10", "miniimg")


def places(preset: Preset) -> Iterator[tuple[str, int]]:
    """Yield (data, buffer) of the studies: the smaller buffer of both CIFARs, or of what stands for them."""
    for key in ("cifar10", "cifar100"):
        yield key, preset.data[key].buffers[0]


def memories(preset: Preset, keys: Sequence[str] = ALL_DATA) -> Iterator[tuple[str, int]]:
    """Yield (data, buffer) for every buffer size of these data sets, as far as the preset has them."""
    for key in keys:
        if key in preset.data:
            for buffer in preset.data[key].buffers:
                yield key, buffer


# Both readings of CIFAR-100 stand beside the one published column: 20 tasks in the text, 10 in the release.
PUBLISHED_DATA = {
    "cifar10": "Split CIFAR-10",
    "cifar100": "Split CIFAR-100",
    "cifar100-10": "Split CIFAR-100",
    "miniimg": "Split Mini-ImageNet",
}


def _online(preset: Preset, table: str, metric: tuple[str, ...]) -> Iterator[Cell]:
    for model in (*ONLINE, *preset.also_models):
        method = METHODS.get(model, model)
        build: Any = MODELS.get(model).build  # a Method
        for norm in (*NORMS, *preset.also):
            for key, buffer in memories(preset):
                printed_buffers = (500, 2000) if key == "cifar10" else (2000, 5000)
                printed = f"{PUBLISHED_DATA[key]} M={printed_buffers[preset.data[key].buffers.index(buffer)]}"
                yield Cell(
                    method, f"{method} w/ {title_of(norm)}", (preset.data[key].title, f"M = {buffer}"),
                    Experiment(model, norm, key, buffer if build.uses_buffer else None), metric,
                    (table, f"{method} w/ {in_paper(norm)}", printed),
                )  # fmt: skip


FORGETTING = ("results", TASK_IL, "metrics", "forgetting_as_published")
_AS_RELEASED = "The variant that the released code computes, which is never negative. "
_READINGS = "CIFAR-100 is 20 tasks in the text and 10 in the released code; both stand beside the one published number."
for _id, _title, _metric, _note in (
    ("table2", "Online Task-IL, final average accuracy", faa(TASK_IL), ""),
    ("table3", "Online Class-IL, final average accuracy", faa(CLASS_IL), ""),
    ("table11", "Online Task-IL, forgetting", FORGETTING, _AS_RELEASED),
):
    plan(_id, _title, note=f"{_note}{_READINGS}")(partial(_online, table=_id, metric=_metric))


@plan("table4", "Offline Task-IL and Class-IL, final average accuracy")
def table4(preset: Preset) -> Iterator[Cell]:
    key = "miniimg" if "miniimg" in preset.data else "offline"
    offline = (("scenario", "offline"), *preset.offline.items())
    group = f"{preset.data[key].title}, M = {preset.data[key].buffers[0]}"
    for norm in ("bn", "cn", "adab2n", *preset.also):
        for setting, title in SETTINGS.items():
            for model, name in METHODS.items():
                experiment = Experiment(model, norm, key, preset.data[key].buffers[0], offline)
                published = ("table4", in_paper(norm), f"{title} {name}")
                yield Cell(group, title_of(norm), (title, name), experiment, faa(setting), published)


@plan(
    "table6", "Running time of ER-ACE",
    note="Ours are the training seconds of our runs on their own device, with the norm layers that runs use. The "
    "paper's plain versions of BN, GN and CN do not exist here; `python -m scripts.bench norms` times the layers.",
)  # fmt: skip
def table6(preset: Preset) -> Iterator[Cell]:
    data = preset.data["cifar100"]
    for norm in ("bn", "gn", "cn", "adab2n"):
        experiment = Experiment("er_ace", norm, "cifar100", data.buffers[0])
        yield Cell(f"{data.title}, M = {data.buffers[0]}", "Time (cuDNN)", (NORMS[norm],), experiment, ("seconds",),
                   ("table6", "Time (cuDNN)", in_paper(norm)))  # fmt: skip


SHARES = ("1", "1/2", "1/5", "1/10", "1/12", "1/15", "1/20", "1/T")


@plan(
    "table7", "Share r of the current task in a batch",
    note="The paper names neither method nor memory, norm or forward: DER++ and ER-ACE with BN, the memory in the rows "
    "and a joint forward, without which there is no batch to have a share in, are ours. Captioned Split CIFAR-10, but "
    "Class-IL of 3 % is below chance for ten classes: both readings stand beside the one published number. A draw is "
    "never larger than the buffer.",
)  # fmt: skip
def table7(preset: Preset) -> Iterator[Cell]:
    buffer = preset.data["cifar10"].buffers[0]
    for key in ("cifar10", "cifar100-10"):
        for model in ("derpp", "er_ace") if key in preset.data else ():
            for setting, name in SETTINGS.items():
                for share in SHARES:
                    flags = (("replay_forward", "joint"), ("current_share", share))
                    # Every row is a group of its own: what is compared are its columns.
                    row = f"{preset.data[key].title}, M = {buffer}, {METHODS[model]} w/ BN, {name}"
                    yield Cell(row, row, (f"r = {share}",), Experiment(model, "bn", key, buffer, flags), faa(setting),
                               ("table7", f"{name} ACC", share))  # fmt: skip


@plan(
    "table8", "Fine-tuning and joint training",
    note="Captioned Split CIFAR-10, but fine-tuned Class-IL of 5.8 % is below chance for ten classes; the numbers fit "
    "CIFAR-100 in ten tasks. Both readings stand beside the one published number.",
)  # fmt: skip
def table8(preset: Preset) -> Iterator[Cell]:
    models = {"sgd": "Fine-tuning", "joint": "Joint tuning"}
    for key in ("cifar10", "cifar100-10"):
        for norm in ("bn", "cn", "adab2n", *preset.also) if key in preset.data else ():
            for model, title in models.items():
                for setting, name in SETTINGS.items():
                    published = ("table8", in_paper(norm), f"{title} {name} ACC")
                    experiment = Experiment(model, norm, key)
                    group = preset.data[key].title
                    yield Cell(group, title_of(norm), (title, name), experiment, faa(setting), published)


def _gains(preset: Preset, variants: dict[str, Flags]) -> Iterator[Cell]:
    """Yield gains over BN under otherwise equal conditions."""
    for key, buffer in memories(preset, ("cifar10", "cifar100", "miniimg")):
        for setting, setting_title in SETTINGS.items():
            for model in ONLINE:
                for variant, flags in variants.items():
                    for norm in (*preset.figure_norms, *preset.also):
                        column = (setting_title, METHODS[model], f"{variant}, {title_of(norm)}")
                        row = f"{preset.data[key].title}, M = {buffer}"
                        # Every row is a group of its own: gains on different data are no rivals.
                        yield Cell(row, row, column, Experiment(model, norm, key, buffer, flags), faa(setting),
                                   baseline=Experiment(model, "bn", key, buffer, flags))  # fmt: skip


GAIN_NOTE = "Percentage points over BN, paired by seed. The source holds no numbers for this figure."


@plan("fig2", "Gain over BN by batch size and memory size", note=GAIN_NOTE)
def fig2(preset: Preset) -> Iterator[Cell]:
    large = (("batch_size", preset.large_batch),)
    yield from _gains(preset, {"B = 10": (), f"B = {preset.large_batch}": large})


@plan("fig3", "AdaB²N by κ and λ, DER++", note="The source holds no numbers for this figure.")
def fig3(preset: Preset) -> Iterator[Cell]:
    data = preset.data["cifar100"]
    for setting, title in SETTINGS.items():
        for kappa in preset.kappas:
            for value in data.lambdas:
                flags = (("kappa", kappa), ("lambd", value))
                experiment = Experiment("derpp", "adab2n", "cifar100", data.buffers[0], flags)
                column = (f"{data.title}, M = {data.buffers[0]}", f"λ = {value:g}")
                row = f"{title}, κ = {kappa:g}"
                yield Cell(row, row, column, experiment, faa(setting))


@plan("fig5", "Gain over BN by buffer selection and memory size", note=GAIN_NOTE)
def fig5(preset: Preset) -> Iterator[Cell]:
    yield from _gains(preset, {"reservoir": (), "ring": (("buffer_mode", "ring"),)})


def _recorded(preset: Preset, probe: str, *, joint: bool) -> Iterator[Cell]:
    """Yield DER++ on CIFAR-100 with the paper's three norms, and joint training, as recorded for a figure."""
    data, flags = preset.data["cifar100"], (("probe", (probe,)),)
    runs = {title_of(norm): Experiment("derpp", norm, "cifar100", data.buffers[0], flags)
            for norm in ("bn", "cn", "adab2n", *preset.also)}  # fmt: skip
    if joint:
        runs["Joint training, BN"] = Experiment("joint", "bn", "cifar100", None, flags)
    for row, experiment in runs.items():
        for setting, title in SETTINGS.items():
            yield Cell(f"{data.title}, DER++", row, (title,), experiment, faa(setting))


_OF_THE_RUNS = "Final average accuracy of the runs that are drawn, of the first seed."
for _id, _title, _probe in (
    ("fig1", "Loss, gradient similarity and magnitude", "stability"),
    ("fig4", "Norm of the statistics of one layer", "statistics"),
    ("fig6", "Norm of the batch statistics of all layers", "statistics"),
    ("fig7", "Norm of the population statistics of all layers", "statistics"),
):
    plan(_id, _title, note=_OF_THE_RUNS, first_seed_only=True)(
        partial(_recorded, probe=_probe, joint=_probe == "statistics")
    )


SCALED = {  # data of Table 9, what the paper calls it, and what is measured there
    "imagenet-sub": ("ImageNet-sub", SETTINGS),
    "perm-mnist": ("Permuted MNIST", {DOMAIN_IL: "Domain-IL"}),
    "domainnet": ("DomainNet", {DOMAIN_IL: "Domain-IL"}),
}


@plan(
    "table9", "Larger images and more subtle shifts, ER",
    note="The paper names ER, batches of 32 and M = 2000 for ImageNet-sub, and nothing for the two Domain-IL data "
    "sets: their memory, batches and learning rates are ours, and so is which 100 classes ImageNet-sub has.",
)  # fmt: skip
def table9(preset: Preset) -> Iterator[Cell]:
    for key, (name, settings) in SCALED.items():
        for norm in ("bn", "cn", "adab2n", *preset.also) if key in preset.data else ():
            data = preset.data[key]
            for setting, title in settings.items():
                column = (f"{data.title}, M = {data.buffers[0]}", title)
                experiment = Experiment("er", norm, key, data.buffers[0])
                yield Cell("ER", title_of(norm), column, experiment, faa(setting),
                           ("table9", in_paper(norm), f"{name} {title}"))  # fmt: skip


SIGNIFICANCE_BASELINES = ("bn", "cn")


def significance_cells(preset: Preset) -> dict[str, list[Cell]]:
    """Return the results that Table 10 pairs: all accuracies of Tables 2 and 3, and of Table 4."""
    online = [*PLANS["table2"].cells(preset), *PLANS["table3"].cells(preset)]
    of = {"Online": online, "Offline": list(table4(preset))}
    # The second reading of CIFAR-100 would count one published result twice.
    kept = {name: [cell for cell in cells if cell.experiment.data != "cifar100-10"] for name, cells in of.items()}
    return kept | {"Both": kept["Online"] + kept["Offline"]}


@plan(
    "table10", "Wilcoxon signed-rank tests of AdaB²N against BN and CN",
    note="The published p-values are no function of the published means; they fit pairs of seeds. Both are shown. "
    "Task-IL and Class-IL of a run come from the same network, so their pairs are not independent, and p is too small.",
)  # fmt: skip
def table10(preset: Preset) -> Iterator[Cell]:
    for cell in significance_cells(preset)["Both"]:
        if cell.experiment.norm in (*SIGNIFICANCE_BASELINES, "adab2n"):
            yield cell


# In the paper's order: tables, then figures.
PLANS = {f"{kind}{n}": PLANS[f"{kind}{n}"] for kind in ("table", "fig") for n in range(12) if f"{kind}{n}" in PLANS}
