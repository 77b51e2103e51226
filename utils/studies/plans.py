"""The tables and figures of the paper as plans: which cells they have, and which experiments stand behind each cell.

A plan is a function from a preset to cells. Plans share runs where they share experiments: Tables 2, 3 and 11 need the
same runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from utils.config.registry import METRICS, MODELS
from utils.studies.presets import Preset

NORMS = {"bn": "BN", "ln": "LN", "in": "IN", "gn": "GN", "cn": "CN", "adab2n": "AdaB²N"}
METHODS = {"er_ace": "ER-ACE", "derpp": "DER++", "er_ace_lider": "LiDER"}
TASK_IL, CLASS_IL, DOMAIN_IL = "task_il", "class_il", "domain_il"
SETTINGS = {TASK_IL: "Task-IL", CLASS_IL: "Class-IL"}
ONLINE = ("er_ace", "derpp")  # the methods of the online tables
PAPER_NORMS = ("bn", "cn", "adab2n")  # of the other tables

Flags = tuple[tuple[str, Any], ...]
JOINT: Flags = (("replay_forward", "joint"),)
SEPARATE: Flags = (("replay_forward", "separate"),)
LEARNED: Flags = (("cn_affine", "learned"),)
LARGE_BATCHES: Flags = (("batch_size", 32),)
RING: Flags = (("buffer_mode", "ring"),)
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
        return Comparison(((1, self.experiment), *([(-1, self.baseline)] if self.baseline else [])), self.metric)

    @property
    def smaller_is_better(self) -> bool:
        entry = METRICS.entries().get(self.metric[-1])
        return self.metric[-1] == "seconds" or bool(entry and entry.traits.get("smaller_is_better"))


@dataclass(frozen=True)
class Plan:
    id: str
    title: str
    cells: Callable[[Preset], Iterator[Cell]]
    note: str = ""
    first_seed_only: bool = False  # a figure of single runs, whose recordings are large
    seeds: tuple[int, ...] = ()  # if the plan has seeds of its own
    x_axis: str = ""  # the flag that varies from column to column, if its values are numbers


def title_of(norm: str) -> str:
    return NORMS.get(norm, norm)


def in_paper(norm: str) -> str:
    return "Ours" if norm == "adab2n" else title_of(norm)


def faa(setting: str) -> tuple[str, ...]:
    return ("results", setting, "metrics", "faa")


FORGETTING = ("results", TASK_IL, "metrics", "forgetting_as_published")
# Both readings of CIFAR-100 stand beside the one published column: 20 tasks in the text, 10 in the release.
PUBLISHED_DATA = {
    "cifar10": "Split CIFAR-10",
    "cifar100": "Split CIFAR-100",
    "cifar100-10": "Split CIFAR-100",
    "miniimg": "Split Mini-ImageNet",
}
ONE_READING = ("cifar10", "cifar100", "miniimg")  # of CIFAR-100


def places(preset: Preset) -> Iterator[tuple[str, int]]:
    """Yield (data, buffer) of the studies: the smaller buffer of both CIFARs, or of what stands for them."""
    return ((key, preset.data[key].buffers[0]) for key in ("cifar10", "cifar100"))


def memories(preset: Preset, keys: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield (data, buffer) for every buffer size of these data sets, as far as the preset has them."""
    return ((key, buffer) for key in keys if key in preset.data for buffer in preset.data[key].buffers)


# --- the cells of tables and figures ----------------------------------------------------------------------------------


def online(preset: Preset, table: str, metric: tuple[str, ...]) -> Iterator[Cell]:
    for model in (*ONLINE, *preset.also_models):
        method = METHODS.get(model, model)
        build: Any = MODELS.get(model).build  # a Method
        for norm, (key, buffer) in product((*NORMS, *preset.also), [*memories(preset, PUBLISHED_DATA)]):
            data, sizes = preset.data[key], (500, 2000) if key == "cifar10" else (2000, 5000)
            printed = f"{PUBLISHED_DATA[key]} M={sizes[data.buffers.index(buffer)]}"
            experiment = Experiment(model, norm, key, buffer if build.uses_buffer else None)
            yield Cell(method, f"{method} w/ {title_of(norm)}", (data.title, f"M = {buffer}"), experiment, metric,
                       (table, f"{method} w/ {in_paper(norm)}", printed))  # fmt: skip


def table4(preset: Preset) -> Iterator[Cell]:
    key = "miniimg" if "miniimg" in preset.data else "offline"
    data, flags = preset.data[key], (("scenario", "offline"), *preset.offline.items())
    norms = (*PAPER_NORMS, *preset.also)
    for norm, (setting, title), (model, name) in product(norms, SETTINGS.items(), METHODS.items()):
        experiment = Experiment(model, norm, key, data.buffers[0], flags)
        yield Cell(f"{data.title}, M = {data.buffers[0]}", title_of(norm), (title, name), experiment, faa(setting),
                   ("table4", in_paper(norm), f"{title} {name}"))  # fmt: skip


def table6(preset: Preset) -> Iterator[Cell]:
    data = preset.data["cifar100"]
    for norm in ("bn", "gn", "cn", "adab2n"):
        experiment = Experiment("er_ace", norm, "cifar100", data.buffers[0])
        yield Cell(f"{data.title}, M = {data.buffers[0]}", "Time (cuDNN)", (NORMS[norm],), experiment, ("seconds",),
                   ("table6", "Time (cuDNN)", in_paper(norm)))  # fmt: skip


SHARES = ("1", "1/2", "1/5", "1/10", "1/12", "1/15", "1/20", "1/T")


def table7(preset: Preset) -> Iterator[Cell]:
    buffer = preset.data["cifar10"].buffers[0]
    data = [key for key in ("cifar10", "cifar100-10") if key in preset.data]
    for key, model, (setting, name), share in product(data, ("derpp", "er_ace"), SETTINGS.items(), SHARES):
        experiment = Experiment(model, "bn", key, buffer, (*JOINT, ("current_share", share)))
        # Every row is a group of its own: what is compared are its columns.
        row = f"{preset.data[key].title}, M = {buffer}, {METHODS[model]} w/ BN, {name}"
        yield Cell(row, row, (f"r = {share}",), experiment, faa(setting), ("table7", f"{name} ACC", share))


def table8(preset: Preset) -> Iterator[Cell]:
    models = {"sgd": "Fine-tuning", "joint": "Joint tuning"}
    data = [key for key in ("cifar10", "cifar100-10") if key in preset.data]
    norms = (*PAPER_NORMS, *preset.also)
    for key, norm, (model, title), (setting, name) in product(data, norms, models.items(), SETTINGS.items()):
        yield Cell(preset.data[key].title, title_of(norm), (title, name), Experiment(model, norm, key), faa(setting),
                   ("table8", in_paper(norm), f"{title} {name} ACC"))  # fmt: skip


SCALED = {  # data of Table 9, what the paper calls it, and what is measured there
    "imagenet-sub": ("ImageNet-sub", SETTINGS),
    "perm-mnist": ("Permuted MNIST", {DOMAIN_IL: "Domain-IL"}),
    "domainnet": ("DomainNet", {DOMAIN_IL: "Domain-IL"}),
}


def table9(preset: Preset) -> Iterator[Cell]:
    for key in (key for key in SCALED if key in preset.data):
        data, (name, settings) = preset.data[key], SCALED[key]
        for norm, (setting, title) in product((*PAPER_NORMS, *preset.also), settings.items()):
            experiment = Experiment("er", norm, key, data.buffers[0])
            yield Cell("ER", title_of(norm), (f"{data.title}, M = {data.buffers[0]}", title), experiment, faa(setting),
                       ("table9", in_paper(norm), f"{name} {title}"))  # fmt: skip


SIGNIFICANCE_BASELINES = ("bn", "cn")


def significance_cells(preset: Preset) -> dict[str, list[Cell]]:
    """Return the results that Table 10 pairs: all accuracies of Tables 2 and 3, and of Table 4."""
    both = [*PLANS["table2"].cells(preset), *PLANS["table3"].cells(preset)]
    # The second reading of CIFAR-100 would count one published result twice.
    first, offline = [cell for cell in both if cell.experiment.data != "cifar100-10"], [*table4(preset)]
    return {"Online": first, "Offline": offline, "Both": first + offline}


def table10(preset: Preset) -> Iterator[Cell]:
    norms = (*SIGNIFICANCE_BASELINES, "adab2n")
    return (cell for cell in significance_cells(preset)["Both"] if cell.experiment.norm in norms)


def gains(preset: Preset, variants: dict[str, Flags]) -> Iterator[Cell]:
    """Yield gains over BN under otherwise equal conditions."""
    norms = (*preset.figure_norms, *preset.also)
    for (key, buffer), (setting, title), model, (variant, flags), norm in product(
        [*memories(preset, ONE_READING)], SETTINGS.items(), ONLINE, variants.items(), norms
    ):
        ours, bn = (Experiment(model, name, key, buffer, flags) for name in (norm, "bn"))
        column = (title, METHODS[model], f"{variant}, {title_of(norm)}")
        # Every row is a group of its own: gains on different data are no rivals.
        row = f"{preset.data[key].title}, M = {buffer}"
        yield Cell(row, row, column, ours, faa(setting), baseline=bn)


def fig3(preset: Preset) -> Iterator[Cell]:
    data = preset.data["cifar100"]
    for (setting, title), kappa, lambd in product(SETTINGS.items(), preset.kappas, data.lambdas):
        flags = (("kappa", kappa), ("lambd", lambd))
        experiment = Experiment("derpp", "adab2n", "cifar100", data.buffers[0], flags)
        row, column = f"{title}, κ = {kappa:g}", (f"{data.title}, M = {data.buffers[0]}", f"λ = {lambd:g}")
        yield Cell(row, row, column, experiment, faa(setting))


def recorded(preset: Preset, probe: str) -> Iterator[Cell]:
    """Yield DER++ on CIFAR-100 with the paper's three norms, and joint training, as recorded for a figure."""
    data, flags = preset.data["cifar100"], (("probe", (probe,)),)
    runs = {title_of(norm): Experiment("derpp", norm, "cifar100", data.buffers[0], flags)
            for norm in (*PAPER_NORMS, *preset.also)}  # fmt: skip
    if probe == "statistics":
        runs["Joint training, BN"] = Experiment("joint", "bn", "cifar100", None, flags)
    for (row, experiment), (setting, title) in product(runs.items(), SETTINGS.items()):
        yield Cell(f"{data.title}, DER++", row, (title,), experiment, faa(setting))


# --- the plans, in the paper's order: tables, then figures ------------------------------------------------------------

_READINGS = "CIFAR-100 is 20 tasks in the text and 10 in the released code; both stand beside the one published number."
_GAINS = "Percentage points over BN, paired by seed. The source holds no numbers for this figure."
_RECORDED = "Final average accuracy of the runs that are drawn, of the first seed."
_stability, _statistics = partial(recorded, probe="stability"), partial(recorded, probe="statistics")
_PLANS = (
    Plan("table2", "Online Task-IL, final average accuracy", partial(online, table="table2", metric=faa(TASK_IL)),
         _READINGS),
    Plan("table3", "Online Class-IL, final average accuracy", partial(online, table="table3", metric=faa(CLASS_IL)),
         _READINGS),
    Plan("table4", "Offline Task-IL and Class-IL, final average accuracy", table4),
    Plan("table6", "Running time of ER-ACE", table6,
         "Ours are the training seconds of our runs on their own device, with the norm layers that runs use. "
         "The paper's plain versions of BN, GN and CN do not exist here; `python -m scripts.bench norms` times the "
         "layers."),
    Plan("table7", "Share r of the current task in a batch", table7,
         "The paper names neither method nor memory, norm or forward: DER++ and ER-ACE with BN, the memory in the rows "
         "and a joint forward, without which there is no batch to have a share in, are ours. Captioned Split CIFAR-10, "
         "but Class-IL of 3 % is below chance for ten classes: both readings stand beside the one published number. A "
         "draw is never larger than the buffer."),
    Plan("table8", "Fine-tuning and joint training", table8,
         "Captioned Split CIFAR-10, but fine-tuned Class-IL of 5.8 % is below chance for ten classes; the numbers fit "
         "CIFAR-100 in ten tasks. Both readings stand beside the one published number."),
    Plan("table9", "Larger images and more subtle shifts, ER", table9,
         "The paper names ER, batches of 32 and M = 2000 for ImageNet-sub, and nothing for the two Domain-IL data "
         "sets: their memory, batches and learning rates are ours, and so is which 100 classes ImageNet-sub has."),
    Plan("table10", "Wilcoxon signed-rank tests of AdaB²N against BN and CN", table10,
         "The published p-values are no function of the published means; they fit pairs of seeds. Both are shown. "
         "Task-IL and Class-IL of a run come from the same network, so their pairs are not independent, and p is too "
         "small."),
    Plan("table11", "Online Task-IL, forgetting", partial(online, table="table11", metric=FORGETTING),
         f"The variant that the released code computes, which is never negative. {_READINGS}"),
    Plan("fig1", "Loss, gradient similarity and magnitude", _stability, _RECORDED, first_seed_only=True),
    Plan("fig2", "Gain over BN by batch size and memory size",
         partial(gains, variants={"B = 10": (), "B = 32": LARGE_BATCHES}), _GAINS),
    Plan("fig3", "AdaB²N by κ and λ, DER++", fig3, "The source holds no numbers for this figure."),
    Plan("fig4", "Norm of the statistics of one layer", _statistics, _RECORDED, first_seed_only=True),
    Plan("fig5", "Gain over BN by buffer selection and memory size",
         partial(gains, variants={"reservoir": (), "ring": RING}), _GAINS),
    Plan("fig6", "Norm of the batch statistics of all layers", _statistics, _RECORDED, first_seed_only=True),
    Plan("fig7", "Norm of the population statistics of all layers", _statistics, _RECORDED, first_seed_only=True),
)  # fmt: skip
PLANS = {plan.id: plan for plan in _PLANS}
