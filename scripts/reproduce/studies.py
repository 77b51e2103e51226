"""What the paper leaves open, as plans beside its tables: how much of a gain is the norm, how much the batching?

The paper ran BN and CN with separate forwards, AdaB2N with a joint one, and CN with its affine parameters frozen.
Every study compares runs that differ in one thing, seed by seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scripts.reproduce.plans import CLASS_IL, METHODS, SETTINGS, Cell, Experiment, Plan, faa, title_of
from scripts.reproduce.presets import Preset

Flags = tuple[tuple[str, Any], ...]

JOINT, SEPARATE = (("replay_forward", "joint"),), (("replay_forward", "separate"),)
LEARNED = (("cn_affine", "learned"),)
WEIGHTS_ALONE = (("kappa", 1.0), ("lambd", 0.0))
VARIANTS: dict[str, tuple[str, Flags]] = {
    "BN": ("bn", ()),
    "BN, joint": ("bn", JOINT),
    "CN": ("cn", ()),
    "CN, learned affine": ("cn", LEARNED),
    "AdaB²N": ("adab2n", ()),
    "AdaB²N, κ = 1, λ = 0": ("adab2n", WEIGHTS_ALONE),
}
ONLINE = ("er_ace", "derpp")
STUDIES: dict[str, Plan] = {}


def study(id: str, title: str, note: str, **facts):
    def register(cells):
        STUDIES[id] = Plan(id, title, cells, note=note, **facts)
        return cells

    return register


def places(preset: Preset) -> Iterator[tuple[str, int, str]]:
    """(data, memory, title) where studies are run: the smaller memory of both CIFARs, or what stands for them."""
    for key in ("cifar10", "cifar100"):
        buffer = preset.data[key].buffers[0]
        yield key, buffer, f"{preset.data[key].title}, M = {buffer}"


def compared(preset: Preset, rows: dict[str, tuple[str, Flags]], against: dict[str, tuple[str, Flags]]):
    """Gains of every row over what it is compared with, both methods, data sets and settings."""
    for model in ONLINE:
        for key, buffer, data in places(preset):
            for setting, title in SETTINGS.items():
                for row, (norm, flags) in rows.items():
                    baseline, its_flags = against[row]
                    yield Cell(
                        METHODS[model], f"{METHODS[model]}: {row}", (title, data),
                        Experiment(model, norm, key, buffer, flags), faa(setting),
                        over=Experiment(model, baseline, key, buffer, its_flags),
                    )  # fmt: skip


@study(
    "core", "BN, CN and AdaB²N with and without the confounds",
    "Final average accuracy. BN and CN as in the paper replay in a forward of their own, AdaB²N in a joint one; CN's "
    "affine parameters were frozen. AdaB²N with κ = 1 and λ = 0 is its task weights alone.",
)  # fmt: skip
def core(preset):
    for model in ONLINE:
        for row, (norm, flags) in VARIANTS.items():
            for key, buffer, data in places(preset):
                for setting, title in SETTINGS.items():
                    yield Cell(
                        METHODS[model], f"{METHODS[model]} w/ {row}", (title, data),
                        Experiment(model, norm, key, buffer, flags), faa(setting),
                    )  # fmt: skip


PAIRED = "Percentage points, paired by seed."


@study("batching", "How much of the gain is batching? Joint against separate forward", PAIRED)
def batching(preset):
    norms = ("bn", "cn", "adab2n")
    rows = {f"{title_of(norm)}, joint over separate": (norm, JOINT) for norm in norms}
    against = {f"{title_of(norm)}, joint over separate": (norm, SEPARATE) for norm in norms}
    for way, flags in (("joint", JOINT), ("separate", SEPARATE)):
        rows[f"AdaB²N over BN, both {way}"], against[f"AdaB²N over BN, both {way}"] = ("adab2n", flags), ("bn", flags)
    yield from compared(preset, rows, against)


@study("cn-affine", "CN with learned over CN with frozen affine parameters", PAIRED)
def cn_affine(preset):
    ways = {"separate": (), "joint": JOINT}
    rows = {f"learned over frozen, {way}": ("cn", (*LEARNED, *flags)) for way, flags in ways.items()}
    yield from compared(preset, rows, {f"learned over frozen, {way}": ("cn", flags) for way, flags in ways.items()})


@study("parts", "AdaB²N taken apart: gain over BN in the same joint forward", PAIRED)
def parts(preset):
    rows = {
        "task weights alone (κ = 1, λ = 0)": ("adab2n", WEIGHTS_ALONE),
        "no penalty (λ = 0)": ("adab2n", (("lambd", 0.0),)),
        "momentum of EMA (κ = 1)": ("adab2n", (("kappa", 1.0),)),
        "no task weights": ("adab2n", (("balance_groups", "none"),)),
        "all": ("adab2n", ()),
    }
    yield from compared(preset, rows, dict.fromkeys(rows, ("bn", JOINT)))


SWITCHES = {
    "absent_tasks": "ignored",
    "variance": "within",
    "eta_start": "eta1",
    "penalty_norm": "sum",
    "running_var_start": 0,
    "penalty_steps": "all",
}


@study("switches", "AdaB²N as the paper's text has it, one switch at a time", f"Over the released code's. {PAIRED}")
def switches(preset):
    rows = {f"{name} = {value}": ("adab2n", ((name, value),)) for name, value in SWITCHES.items()}
    yield from compared(preset, rows, dict.fromkeys(rows, ("adab2n", ())))
    others = {"LN affine per channel": ("ln", "ln_affine"), "IN affine per channel": ("in", "in_affine")}
    rows = {row: (norm, ((switch, "channel"),)) for row, (norm, switch) in others.items()}
    yield from compared(preset, rows, {row: (norm, ()) for row, (norm, _) in others.items()})


AROUND = {"kappa": (0.4, 0.7, 1.0), "lambd": (0.0, 0.01, 0.1)}


@study("kappa-lambda", "Gain of AdaB²N over BN around the default κ and λ", PAIRED)
def kappa_lambda(preset):
    rows = {
        f"κ = {kappa:g}, λ = {lambd:g}": ("adab2n", (("kappa", kappa), ("lambd", lambd)))
        for kappa in AROUND["kappa"]
        for lambd in AROUND["lambd"]
    }
    yield from compared(preset, rows, dict.fromkeys(rows, ("bn", ())))


LARGE_LAMBDAS = (1.0, 10.0)


@study(
    "divergence", "Where do large λ make runs diverge? The first two tasks alone",
    "Final average accuracy on the two tasks. A run that diverged has none: its record says at which step and why.",
)  # fmt: skip
def divergence(preset):
    for model in ONLINE:
        for lambd in LARGE_LAMBDAS:
            for key, buffer, data in places(preset):
                flags = (("lambd", lambd), ("stop_after", 2))
                yield Cell(
                    METHODS[model], f"{METHODS[model]}, λ = {lambd:g}", (data,),
                    Experiment(model, "adab2n", key, buffer, flags), faa(CLASS_IL),
                )  # fmt: skip


THREE = ("bn", "cn", "adab2n")


@study(
    "anytime", "Accuracy while training, DER++",
    "AAA is the mean over all evaluations of the mean accuracy on the tasks seen so far, WC-ACC the worst case.",
    first_seed_only=True,
)  # fmt: skip
def anytime(preset):
    data, flags = preset.data["cifar10"], (("eval_every", preset.eval_every),)
    group = f"{data.title}, M = {data.buffers[0]}"
    measures = {"AAA": "aaa", "WC-ACC": "wc_acc", "FAA": "faa"}
    for norm in (*THREE, *preset.also):
        experiment = Experiment("derpp", norm, "cifar10", data.buffers[0], flags)
        for setting, title in SETTINGS.items():
            for name, metric in measures.items():
                yield Cell(group, title_of(norm), (title, name), experiment, ("results", setting, "metrics", metric))


@study(
    "weights", "Weights of the tasks in the statistics, DER++", "Final average accuracy of the recorded runs.",
    first_seed_only=True,
)  # fmt: skip
def weights(preset):
    data, flags = preset.data["cifar10"], (("probe", ("weights",)),)
    group = f"{data.title}, M = {data.buffers[0]}"
    for norm in ("bn", "adab2n"):
        experiment = Experiment("derpp", norm, "cifar10", data.buffers[0], (*flags, *JOINT))
        for setting, title in SETTINGS.items():
            yield Cell(group, title_of(norm), (title,), experiment, faa(setting))
