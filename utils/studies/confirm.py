"""The confirmatory runs of docs/protocol.md, group by group in the order in which they are run.

`python -m scripts.reproduce run confirm --preset narrow` runs them all. Every group has seeds of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from utils.studies import plans
from utils.studies.plans import JOINT, METHODS, ONLINE, SEPARATE, Cell, Experiment, Flags, Plan, faa
from utils.studies.presets import Preset

# Seed 0 chose the defaults of AdaB2N, and the results of seeds 1 and 2 were known before the protocol was written.
EXPLORATORY_SEEDS = (0, 1, 2)
CONFIRMATORY_SEEDS = (3, 4, 5, 6, 7, 8, 9)

Arm = tuple[str, Flags]  # norm and further flags
Arms = dict[str, Arm]  # by row title

TITLES = METHODS | {"er": "ER", "sgd": "Fine-tuning", "joint": "Joint training"}
BN, CN, ADAB2N = (("bn", ()), ("cn", ()), ("adab2n", ()))
MAIN: Arms = {"BN": BN, "BN, joint": ("bn", JOINT), "AdaB²N": ADAB2N}
MAIN_AND_CN: Arms = MAIN | {"CN": CN, "CN, joint": ("cn", JOINT)}
ABLATIONS: Arms = {"AdaB²N, κ = 1, λ = 0": ("adab2n", plans.WEIGHTS_ALONE), "AdaB²N, separate": ("adab2n", SEPARATE)}
MNIST: Arms = {
    "BN, separate": ("bn", SEPARATE),
    "BN, joint": ("bn", JOINT),
    "AdaB²N, joint": ("adab2n", JOINT),
    "AdaB²N, separate": ("adab2n", SEPARATE),
    "AdaB²N, κ = 1, λ = 0": ("adab2n", plans.WEIGHTS_ALONE),
    "CN": CN,
}
PLAIN: Arms = {"BN": BN, "CN": CN, "AdaB²N": ADAB2N}
OTHER_NORMS: Arms = {"GN": ("gn", ()), "LN": ("ln", ()), "IN": ("in", ())}
PAPER_WIDTH: Flags = (("num_filters", 64),)

Part = tuple[Sequence[str], Sequence[str], int | None, Arms, Flags]  # methods, data, which of its buffers, arms, flags


def _cells(preset: Preset, parts: Sequence[Part]) -> Iterator[Cell]:
    """Yield one cell per method, data set, arm and setting."""
    for models, data, index, arms, flags in parts:
        for model, key, (arm, (norm, arm_flags)) in product(models, data, arms.items()):
            buffer = None if index is None else preset.data[key].buffers[index]
            title = preset.data[key].title + ("" if buffer is None else f", M = {buffer}")
            title += ", width 64" if flags == PAPER_WIDTH else ""
            experiment = Experiment(model, norm, key, buffer, (*arm_flags, *flags))
            settings = {plans.DOMAIN_IL: "Domain-IL"} if key == "perm-mnist" else plans.SETTINGS
            for setting, name in settings.items():
                row = f"{TITLES[model]} w/ {arm}"
                yield Cell(TITLES[model], row, (title, name), experiment, faa(setting))


def _plan(id: str, title: str, seeds: tuple[int, ...], *parts: Part) -> Plan:
    return Plan(f"confirm-{id}", title, partial(_cells, parts=parts), seeds=seeds)


CIFARS, TEN_TASKS = ("cifar10", "cifar100"), ("cifar100-10",)
_PLANS = (
    _plan("mnist", "(a) Permuted MNIST", (3, 4, 5, 6, 7), (("er", "derpp"), ("perm-mnist",), 0, MNIST, ())),
    _plan("core", "(b) BN, CN and AdaB²N", (3, 4, 5), (ONLINE, CIFARS, 0, MAIN_AND_CN, ())),
    _plan("core-more", "(b) BN, CN and AdaB²N, further seeds", (6, 7, 8, 9), (ONLINE, CIFARS, 0, MAIN_AND_CN, ())),
    _plan("10-tasks", "(c) CIFAR-100 in 10 tasks", (3, 4, 5), (ONLINE, TEN_TASKS, 0, MAIN, ())),
    _plan("large-buffers", "(d) Larger buffers", (3, 4, 5), (ONLINE, CIFARS, 1, MAIN, ())),
    _plan("ablations", "(e) AdaB²N without its parts", (3, 4, 5), (ONLINE, CIFARS, 0, ABLATIONS, ())),
    _plan("others", "(f) Fine-tuning, joint training, other norms", (3, 4, 5),
          (("sgd", "joint"), TEN_TASKS, None, PLAIN, ()), (ONLINE, ("cifar10",), 0, OTHER_NORMS, ())),
    _plan("width-64", "(g) The paper's width", (3, 4, 5), (("derpp",), TEN_TASKS, 0, MAIN, PAPER_WIDTH)),
)  # fmt: skip
CONFIRM = {plan.id: plan for plan in _PLANS}
