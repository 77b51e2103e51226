"""The paper's statements and our questions as data.

A statement has cells. In each, one method on one data set with one memory size, a difference such as AdaB2N minus BN is
measured. `utils.studies.verdicts` says what runs make of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from utils.studies import plans
from utils.studies.confirm import ADAB2N, BN, CIFARS, CN, PAPER_WIDTH, TITLES, Arm
from utils.studies.plans import JOINT, ONLINE, PLANS, SEPARATE, SETTINGS, Comparison, Experiment, Flags, faa
from utils.studies.presets import Preset

ABOVE, NOT_ABOVE, ALIKE = "above", "not above", "alike"  # what a statement says of a difference

NamedCells = Iterator[tuple[str, Comparison]]
Cells = Callable[[Preset], NamedCells]
Metric = tuple[str, ...]


@dataclass(frozen=True)
class Claim:
    id: str
    statement: str
    source: str  # where the paper says so, or that it is our question
    cells: Cells  # comparisons with the same name are averaged seed by seed
    says: str = ABOVE

    @property
    def is_ours(self) -> bool:
        return self.source == OURS


# --- cells ------------------------------------------------------------------------------------------------------------


def minus(first: Experiment, second: Experiment, metric: Metric) -> Comparison:
    return Comparison(((1, first), (-1, second)), metric)


def cell_name(experiment: Experiment, preset: Preset) -> str:
    memory = "" if experiment.buffer is None else f", M = {experiment.buffer}"
    return f"{TITLES[experiment.model]}, {preset.data[experiment.data].title}{memory}"


def online(
    preset: Preset, first: Arm, second: Arm, metric: Metric, data: Sequence[str] = plans.ONE_READING,
    models: Sequence[str] = ONLINE, sizes: int | None = None,
) -> NamedCells:  # fmt: skip
    """Yield one arm minus another with these methods and data sets, and all memory sizes or the first ones."""
    for model in models:
        for key in (key for key in data if key in preset.data):
            for buffer in preset.data[key].buffers[:sizes]:
                ours, theirs = (Experiment(model, norm, key, buffer, flags) for norm, flags in (first, second))
                yield cell_name(ours, preset), minus(ours, theirs, metric)


def gain_of_gains(preset: Preset, flags: Flags, metric: Metric) -> NamedCells:
    """Yield AdaB2N's gain over BN with these flags minus that without them."""
    without = dict(online(preset, ADAB2N, BN, metric))
    for name, gain in online(preset, ("adab2n", flags), ("bn", flags), metric):
        (_, ours), (_, bn) = without[name].terms
        yield name, Comparison((*gain.terms, (-1, ours), (1, bn)), metric)


def grid_of_kappa_and_lambda(preset: Preset, metric: Metric) -> NamedCells:
    for cell in (cell for cell in PLANS["fig3"].cells(preset) if cell.metric == metric):
        kappa, lambd = (value for _, value in cell.experiment.flags)
        bn = replace(cell.experiment, norm="bn", flags=())
        yield f"κ = {kappa:g}, λ = {lambd:g}", minus(cell.experiment, bn, metric)


def in_table(
    preset: Preset, id: str, first: str, others: Sequence[str], model: str | None = None, data: Sequence[str] = ()
) -> NamedCells:
    """Yield one norm minus others in a table, in all its settings, with one of its methods or on some data sets."""
    for cell in PLANS[id].cells(preset):
        theirs = cell.experiment
        if theirs.norm in others and model in (None, theirs.model) and (not data or theirs.data in data):
            yield cell_name(theirs, preset), minus(replace(theirs, norm=first), theirs, cell.metric)


def join_cells(*parts: Cells) -> Cells:
    return lambda preset: chain(*(cells(preset) for cells in parts))


# --- the statements, in the paper's order; then our questions ---------------------------------------------------------

BN_JOINT, BN_SEPARATE, ADAB2N_JOINT, ADAB2N_SEPARATE = (
    ("bn", JOINT), ("bn", SEPARATE), ("adab2n", JOINT), ("adab2n", SEPARATE),
)  # fmt: skip
CN_LEARNED, WEIGHTS_ALONE = ("cn", plans.LEARNED), ("adab2n", plans.WEIGHTS_ALONE)
BOTH_READINGS = (*CIFARS, "cifar100-10")  # of CIFAR-100
TABLES_2_3, TABLE_4, FIG_2, FIG_3 = "Sec. 5, Tables 2 and 3", "Sec. 5, Table 4", "Sec. 5, Fig. 2", "Sec. 5, Fig. 3"
FIG_5, TABLE_8, TABLE_9 = "App. C, Fig. 5", "App. C, Table 8", "App. C, Table 9"
TABLE_10, TABLE_11 = "App. C, Table 10", "App. C, Table 11"
OURS = "our question"


def in_both_settings(
    id: str, statement: str, source: str, cells: Callable[..., NamedCells], says: str = ABOVE, **settings: Any
) -> Iterator[Claim]:
    """Yield a statement about Class-IL and the same one about Task-IL. `settings` are those of the cells."""
    for setting, suffix in ((plans.CLASS_IL, "class"), (plans.TASK_IL, "task")):
        cells_in_setting = partial(cells, metric=faa(setting), **settings)
        yield Claim(f"{id}-{suffix}", f"{statement}, {SETTINGS[setting]}", source, cells_in_setting, says)


def two_arms(id: str, statement: str, source: str, first: Arm, second: Arm, **where: Any) -> Iterator[Claim]:
    """Yield statements that one arm is above another."""
    return in_both_settings(id, statement, source, online, first=first, second=second, **where)


MNIST: dict[str, Any] = {"metric": faa(plans.DOMAIN_IL), "data": ("perm-mnist",)}
ER_AND_DERPP = ("er", "derpp")
STUDIED: dict[str, Any] = {"data": CIFARS, "sizes": 1}
TEN_TASKS: dict[str, Any] = {"data": ("cifar100-10",), "sizes": 1}
WIDE_BN, WIDE_ADAB2N = ("bn", PAPER_WIDTH), ("adab2n", PAPER_WIDTH)

_CLAIMS = (
    *two_arms("adab2n-bn", "AdaB²N is above BN", TABLES_2_3, ADAB2N, BN),
    *two_arms("adab2n-cn", "AdaB²N is above CN", TABLES_2_3, ADAB2N, CN),
    *two_arms("cn-bn", "CN is above BN", TABLES_2_3, CN, BN),
    *two_arms("bn-gn", "BN is above GN", TABLES_2_3, BN, ("gn", ())),
    *two_arms("bn-ln", "BN is above LN", TABLES_2_3, BN, ("ln", ())),
    *two_arms("bn-in", "BN is above IN", TABLES_2_3, BN, ("in", ())),
    *in_both_settings("batch-32", "AdaB²N's gain over BN grows with batches of 32", FIG_2,
                      gain_of_gains, flags=plans.LARGE_BATCHES),
    *in_both_settings("ring", "AdaB²N's gain over BN is alike with reservoir and ring buffer", FIG_5,
                      gain_of_gains, ALIKE, flags=plans.RING),
    *in_both_settings("kappa-lambda", "AdaB²N is above BN for a wide range of κ and λ", FIG_3,
                      grid_of_kappa_and_lambda),
    *two_arms("components", "AdaB²N is above its task weights alone (κ = 1, λ = 0)", FIG_3, ADAB2N, WEIGHTS_ALONE,
              **STUDIED),
    Claim("offline", "Offline, AdaB²N is above BN", TABLE_4,
          partial(in_table, id="table4", first="adab2n", others=("bn",))),
    Claim("offline-cn", "Offline, CN is below BN", TABLE_4, partial(in_table, id="table4", first="bn", others=("cn",))),
    Claim("fine-tuning", "Fine-tuned, AdaB²N is above BN and CN", TABLE_8,
          partial(in_table, id="table8", first="adab2n", others=("bn", "cn"), model="sgd")),
    Claim("joint-training", "Trained jointly, AdaB²N does not outperform BN", TABLE_8,
          partial(in_table, id="table8", first="adab2n", others=("bn",), model="joint"), NOT_ABOVE),
    Claim("permuted-mnist", "AdaB²N is above BN on Permuted MNIST, ER", TABLE_9,
          partial(online, first=ADAB2N_JOINT, second=BN_SEPARATE, models=("er",), **MNIST)),
    Claim("larger-data", "AdaB²N is above BN on ImageNet-sub and DomainNet, ER", TABLE_9,
          partial(in_table, id="table9", first="adab2n", others=("bn",), data=("imagenet-sub", "domainnet"))),
    Claim("all-online-bn", "AdaB²N is above BN in all online results together", TABLE_10,
          join_cells(*(partial(online, first=ADAB2N, second=BN, metric=faa(setting)) for setting in SETTINGS))),
    Claim("all-online-cn", "AdaB²N is above CN in all online results together", TABLE_10,
          join_cells(*(partial(online, first=ADAB2N, second=CN, metric=faa(setting)) for setting in SETTINGS))),
    Claim("forgetting", "AdaB²N forgets less than BN and CN, Task-IL", TABLE_11,
          join_cells(*(partial(online, first=other, second=ADAB2N, metric=plans.FORGETTING) for other in (BN, CN)))),
    *two_arms("same-forward", "AdaB²N is above BN in the same joint forward", OURS, ADAB2N, BN_JOINT,
              data=BOTH_READINGS),
    *two_arms("bn-joint", "BN gains from a joint forward", OURS, BN_JOINT, BN, data=BOTH_READINGS),
    *two_arms("adab2n-joint", "AdaB²N gains from a joint forward", OURS, ADAB2N, ADAB2N_SEPARATE, **STUDIED),
    *two_arms("task-weights", "AdaB²N's task weights alone are above BN, both joint", OURS, WEIGHTS_ALONE, BN_JOINT,
              **STUDIED),
    *two_arms("cn-learned", "CN gains from learning its affine parameters", OURS, CN_LEARNED, CN, **STUDIED),
    *two_arms("adab2n-cn-learned", "AdaB²N is above CN with learned affine parameters", OURS, ADAB2N, CN_LEARNED,
              **STUDIED),
    *two_arms("ten-tasks", "AdaB²N is above BN on CIFAR-100 in 10 tasks", OURS, ADAB2N, BN, **TEN_TASKS),
    *two_arms("width-64", "AdaB²N is above BN at width 64, CIFAR-100 in 10 tasks", OURS, WIDE_ADAB2N, WIDE_BN,
              models=("derpp",), **TEN_TASKS),
    Claim("mnist-joint", "BN gains from a joint forward on Permuted MNIST", OURS,
          partial(online, first=BN_JOINT, second=BN_SEPARATE, models=ER_AND_DERPP, **MNIST)),
    Claim("mnist-same-forward", "AdaB²N is above BN in the same joint forward on Permuted MNIST", OURS,
          partial(online, first=ADAB2N_JOINT, second=BN_JOINT, models=ER_AND_DERPP, **MNIST)),
)  # fmt: skip
CLAIMS = {claim.id: claim for claim in _CLAIMS}
