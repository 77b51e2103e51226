"""Presets: the scale of a reproduction (as published, with a narrow network, on a folder of images, in miniature).

Plans name the paper's data sets; a preset maps each of them to the data set that is used, with its title.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class PresetDataset:
    """The data set that is used for one of the paper's."""

    title: str
    flags: dict[str, Any]
    buffers: tuple[int, ...]
    lambdas: tuple[float, ...]  # searched together with the preset's kappas


@dataclass(frozen=True)
class Preset:
    name: str
    help: str
    seeds: tuple[int, ...]
    kappas: tuple[float, ...]
    data: dict[str, PresetDataset]  # the keys that plans use; a preset may lack some
    differs: str = ""  # how it differs from the paper; if it does, no differences to the published numbers are shown
    flags: dict[str, Any] = field(default_factory=dict)  # of every run of the ResNet
    outcomes: dict[str, Any] = field(default_factory=dict)  # flags of every run; they change no number
    offline: dict[str, Any] = field(default_factory=dict)
    eval_every: int = 100  # steps, where accuracy while training is shown
    figure_norms: tuple[str, ...] = ("cn", "adab2n")  # of the figures that show gains over BN
    needs_base_path: bool = False
    also: tuple[str, ...] = ()  # further norms, a row in every table of accuracies
    also_models: tuple[str, ...] = ()  # further methods, each with a row for every norm in the online tables

    @property
    def comparable(self) -> bool:
        return not self.differs

    def has_published_data(self, key: str) -> bool:
        """Return whether the data set is the paper's, so that its published number may stand beside ours."""
        return self.data.get(key) == PAPER.data.get(key)


CIFAR_LAMBDAS, MINI_LAMBDAS = (0.01, 0.1, 1.0, 10.0), (0.00001, 0.0001, 0.001, 0.01)

PAPER = Preset(
    name="paper",
    help="as published: Split CIFAR-10, CIFAR-100 and Mini-ImageNet, three seeds",
    seeds=(0, 1, 2),
    kappas=(0.1, 0.4, 0.7, 1.0),
    data={
        "cifar10": PresetDataset("Split CIFAR-10", {"dataset": "seq-cifar10"}, (500, 2000), CIFAR_LAMBDAS),
        "cifar100": PresetDataset("Split CIFAR-100", {"dataset": "seq-cifar100"}, (2000, 5000), CIFAR_LAMBDAS),
        "cifar100-10": PresetDataset(
            "Split CIFAR-100 in 10 tasks", {"dataset": "seq-cifar100", "n_tasks": 10}, (2000, 5000), CIFAR_LAMBDAS
        ),
        "miniimg": PresetDataset("Split Mini-ImageNet", {"dataset": "seq-miniimg"}, (2000, 5000), MINI_LAMBDAS),
        "imagenet-sub": PresetDataset("ImageNet-sub", {"dataset": "seq-imagenet-sub"}, (2000,), MINI_LAMBDAS),
        "perm-mnist": PresetDataset("Permuted MNIST", {"dataset": "perm-mnist"}, (500,), CIFAR_LAMBDAS),
        "domainnet": PresetDataset("DomainNet", {"dataset": "seq-domainnet"}, (2000,), MINI_LAMBDAS),
    },
)

NARROW = replace(
    PAPER,
    name="narrow",
    help="as published but for the width of the network: ten minutes a run and core",
    differs="Data sets, streams, settings, seeds and class orders are the paper's; the network is not: a ResNet-18 of "
    "16 filters instead of 64, with groups in the paper's proportion to the channels.",
    flags={"num_filters": 16, "groups": 8},
    outcomes={"final_statistics": True, "late_evaluations": 8},
)

PERMUTED_DIGITS = PresetDataset("Permuted digits, 20 tasks", {"dataset": "perm-digits"}, (200,), (0.1, 1.0))
OTHER_DATA = "The columns are what they say, not the paper's data sets."


def _folder(title: str, n_tasks: int, per_class: int, *buffers: int) -> PresetDataset:
    flags = {"dataset": "seq-folder", "num_filters": 16, "groups": 16, "test_per_class": 500}
    return PresetDataset(title, flags | {"n_tasks": n_tasks, "train_per_class": per_class}, buffers, CIFAR_LAMBDAS)


def _digits(n_tasks: int, *buffers: int) -> PresetDataset:
    flags = {"dataset": "seq-digits", "num_filters": 8, "groups": 8, "n_tasks": n_tasks}
    return PresetDataset(f"Digits, {n_tasks} tasks", flags, buffers, (0.1, 1.0))


CPU = replace(
    PAPER,
    name="cpu",
    help="the same structure on a folder of real images (--base_path), with a narrow network and short streams",
    needs_base_path=True,
    differs=OTHER_DATA,
    data={
        "cifar10": _folder("Folder, 5 tasks", 5, 500, 200, 500),
        "cifar100": _folder("Folder, 2 tasks", 2, 500, 200, 500),
        "miniimg": _folder("Folder, 5 tasks, 200 images a class", 5, 200, 100, 200),
        "perm-mnist": PERMUTED_DIGITS,
    },
    offline={"n_epochs": 10},
)

SMOKE = Preset(
    name="smoke",
    help="the same structure in miniature on the embedded digits: one seed, minutes on two cores",
    seeds=(0,),
    kappas=(0.4, 1.0),
    differs=OTHER_DATA,
    data={"cifar10": _digits(5, 50, 200), "cifar100": _digits(2, 50, 200), "offline": _digits(5, 50),
          "perm-mnist": PERMUTED_DIGITS},
    offline={"n_epochs": 2},
    eval_every=5,
    figure_norms=("adab2n",),
)  # fmt: skip

PRESETS = {preset.name: preset for preset in (PAPER, NARROW, CPU, SMOKE)}
