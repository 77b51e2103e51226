"""Turn the arguments of a command into the plans and runs that it is about."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from utils.config import registry
from utils.config.plugins import load_plugins
from utils.errors import UsageError
from utils.studies.confirm import CONFIRM
from utils.studies.plans import NORMS, ONLINE, PLANS, Cell, Plan
from utils.studies.presets import PRESETS, Preset
from utils.studies.runs import Runs
from utils.studies.selection import Selection
from utils.studies.study import STUDIES, named_plugins, read_study


def set_up(arguments: Namespace) -> tuple[list[Plan], Selection]:
    """Return the plans that a command names, and the selection of their runs."""
    if any(id.endswith(".toml") for id in arguments.ids):
        if len(arguments.ids) > 1 or arguments.preset != "paper" or arguments.select != "fixed":
            raise UsageError("a study of one's own stands alone; remove other ids, --preset and --select")
        path = Path(arguments.ids[0])
        arguments.plugins = [*named_plugins(path), *arguments.plugins]
        load_plugins(arguments.plugins)
        study = read_study(path)
        return list(study.plans().values()), selection_of(arguments, study.preset())
    plans = chosen_plans(arguments.ids, PRESETS[arguments.preset])
    if arguments.seeds and any(plan.seeds for plan in plans):
        raise UsageError("confirm has seeds of its own, which docs/protocol.md names; remove --seeds")
    return plans, selection_of(arguments)


def chosen_plans(ids: list[str], preset: Preset) -> list[Plan]:
    """Return the plans with these ids; `core:cifar10` is the part of a plan on that data."""
    families = {"all": PLANS, "studies": STUDIES, "confirm": CONFIRM}
    plans = PLANS | STUDIES | CONFIRM
    chosen: dict[tuple[str, str], Plan] = {}
    for word in ids:
        id, _, data = word.partition(":")
        if id not in {*families, *plans}:
            known, matches = ", ".join([*families, *plans]), registry.close_matches(id, list(plans))
            raise UsageError(f"unknown table, figure or study {id!r}{matches} All: {known}")
        if data and data not in preset.data:
            raise UsageError(f"{word}: preset {preset.name} has no data {data!r}; it has {', '.join(preset.data)}")
        for plan in families[id].values() if id in families else [plans[id]]:
            if missing := {cell.experiment.data for cell in plan.cells(preset)} - preset.data.keys():
                raise UsageError(f"{plan.id}: preset {preset.name} has no data {min(missing)!r}; try --preset narrow")
            chosen[plan.id, data] = replace(plan, cells=partial(cells_on, plan=plan, data=data)) if data else plan
    return list(chosen.values())


def cells_on(preset: Preset, plan: Plan, data: str) -> Iterator[Cell]:
    return (cell for cell in plan.cells(preset) if cell.experiment.data == data)


def with_also(preset: Preset, also: str | None) -> Preset:
    """Return the preset with further norms and methods, separated by commas, a row each."""
    names = also.split(",") if also else []
    models = [name for name in names if name in registry.MODELS.names()]
    norms = [registry.NORMS.get(name).name for name in names if name not in models]  # raises if there is none
    further_models = tuple(model for model in models if model not in ONLINE)
    return replace(preset, also=tuple(norm for norm in norms if norm not in NORMS), also_models=further_models)


def selection_of(arguments: Namespace, preset: Preset | None = None) -> Selection:
    load_plugins(arguments.plugins)
    if Path(arguments.results_path).is_file():
        raise UsageError(f"--results_path {arguments.results_path} is a file; give a folder")
    preset = preset or with_also(PRESETS[arguments.preset], arguments.also)
    if preset.needs_base_path and not arguments.base_path:
        raise UsageError(f"--preset {preset.name} needs --base_path, a folder of images as seq-folder reads it")
    threads = getattr(arguments, "num_threads", 1)
    runs = Runs(preset, arguments.results_path, arguments.base_path, tuple(arguments.plugins), threads)
    return Selection(arguments.select, runs, arguments.seeds or preset.seeds)
