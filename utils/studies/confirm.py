"""The confirmatory runs of docs/protocol.md, group by group in the order in which they are run.

`python -m scripts.reproduce run confirm --preset narrow` runs them all. Every group has seeds of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from utils.studies.plans import (
    DOMAIN_IL,
    JOINT,
    METHODS,
    ONLINE,
    SEPARATE,
    SETTINGS,
    WEIGHTS_ALONE,
    Cell,
    Experiment,
    Flags,
    Plan,
    faa,
)
from utils.studies.presets import Preset

# Seed 0 chose the defaults of AdaB2N, and the results of seeds 1 and 2 were known before the protocol was written.
EXPLORATORY_SEEDS = (0, 1, 2)
CONFIRMATORY_SEEDS = (3, 4, 5, 6, 7, 8, 9)

Arms = dict[str, tuple[str, Flags]]  # row title -> norm and further flags

TITLES = METHODS | {"er": "ER", "sgd": "Fine-tuning", "joint": "Joint training"}
MAIN: Arms = {"BN": ("bn", ()), "BN, joint": ("bn", JOINT), "AdaB²N": ("adab2n", ())}
MAIN_AND_CN: Arms = MAIN | {"CN": ("cn", ()), "CN, joint": ("cn", JOINT)}
ABLATIONS: Arms = {
    "AdaB²N, κ = 1, λ = 0": ("adab2n", WEIGHTS_ALONE),
    "AdaB²N, separate": ("adab2n", SEPARATE),
}
MNIST: Arms = {
    "BN, separate": ("bn", SEPARATE),
    "BN, joint": ("bn", JOINT),
    "AdaB²N, joint": ("adab2n", JOINT),
    "AdaB²N, separate": ("adab2n", SEPARATE),
    "AdaB²N, κ = 1, λ = 0": ("adab2n", WEIGHTS_ALONE),
    "CN": ("cn", ()),
}
PLAIN: Arms = {"BN": ("bn", ()), "CN": ("cn", ()), "AdaB²N": ("adab2n", ())}
OTHER_NORMS: Arms = {"GN": ("gn", ()), "LN": ("ln", ()), "IN": ("in", ())}
PAPER_WIDTH = (("num_filters", 64),)


def _cells(
    preset: Preset, models: Sequence[str], data: dict[str, int | None], arms: Arms, flags: Flags = ()
) -> Iterator[Cell]:
    """Yield one cell per method, arm, data set and setting; `data` maps each data set to an index of its buffers."""
    for model in models:
        for key, index in data.items():
            buffer = None if index is None else preset.data[key].buffers[index]
            title = preset.data[key].title + ("" if buffer is None else f", M = {buffer}")
            settings = {DOMAIN_IL: "Domain-IL"} if key == "perm-mnist" else SETTINGS
            for arm, (norm, arm_flags) in arms.items():
                experiment = Experiment(model, norm, key, buffer, (*arm_flags, *flags))
                for setting, setting_title in settings.items():
                    row = f"{TITLES[model]} w/ {arm}"
                    yield Cell(TITLES[model], row, (title, setting_title), experiment, faa(setting))


def _mnist(preset: Preset) -> Iterator[Cell]:
    return _cells(preset, ("er", "derpp"), {"perm-mnist": 0}, MNIST)


def _core(preset: Preset) -> Iterator[Cell]:
    return _cells(preset, ONLINE, {"cifar10": 0, "cifar100": 0}, MAIN_AND_CN)


def _ten_tasks(preset: Preset) -> Iterator[Cell]:
    return _cells(preset, ONLINE, {"cifar100-10": 0}, MAIN)


def _large_buffers(preset: Preset) -> Iterator[Cell]:
    return _cells(preset, ONLINE, {"cifar10": 1, "cifar100": 1}, MAIN)


def _ablations(preset: Preset) -> Iterator[Cell]:
    return _cells(preset, ONLINE, {"cifar10": 0, "cifar100": 0}, ABLATIONS)


def _others(preset: Preset) -> Iterator[Cell]:
    yield from _cells(preset, ("sgd", "joint"), {"cifar100-10": None}, PLAIN)
    yield from _cells(preset, ONLINE, {"cifar10": 0}, OTHER_NORMS)


def _paper_width(preset: Preset) -> Iterator[Cell]:
    return _cells(preset, ("derpp",), {"cifar100-10": 0}, MAIN, PAPER_WIDTH)


CONFIRM = {
    plan.id: plan
    for plan in (
        Plan("confirm-mnist", "(a) Permuted MNIST", _mnist, seeds=(3, 4, 5, 6, 7)),
        Plan("confirm-core", "(b) BN, CN and AdaB²N", _core, seeds=(3, 4, 5)),
        Plan("confirm-core-more", "(b) BN, CN and AdaB²N, further seeds", _core, seeds=(6, 7, 8, 9)),
        Plan("confirm-10-tasks", "(c) CIFAR-100 in 10 tasks", _ten_tasks, seeds=(3, 4, 5)),
        Plan("confirm-large-buffers", "(d) Larger buffers", _large_buffers, seeds=(3, 4, 5)),
        Plan("confirm-ablations", "(e) AdaB²N without its parts", _ablations, seeds=(3, 4, 5)),
        Plan("confirm-others", "(f) Fine-tuning, joint training, other norms", _others, seeds=(3, 4, 5)),
        Plan("confirm-width-64", "(g) The paper's width", _paper_width, seeds=(3, 4, 5)),
    )
}
