"""What a command is about: its arguments with those of the last run, and the plans and runs that they choose."""

from __future__ import annotations

import errno
import json
import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scripts.reproduce.own_study import OwnStudy, named_plugins, read_study
from scripts.reproduce.plans import NORMS, PLANS, Cell, Plan
from scripts.reproduce.presets import PRESETS, Preset
from scripts.reproduce.runs import Runs
from scripts.reproduce.selection import Selection
from scripts.reproduce.studies import STUDIES
from utils.config.loop_options import seeds as seeds_of
from utils.config.plugins import load_plugins
from utils.config.registry import MODELS as REGISTERED_MODELS
from utils.config.registry import NORMS as REGISTERED_NORMS
from utils.config.registry import close_matches
from utils.errors import UsageError
from utils.files import write_json

LAST = "reproduce.json"  # what the last `run` was about, so that the other commands need not be told again
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # which may pass while a sweep goes on
REMEMBERED = ("preset", "select", "seeds", "kappa", "lambd", "also", "plugins", "base_path")


def settled(arguments) -> None:
    """What was not given: `run` takes the defaults, the other commands what the last `run` here was about."""
    last = {} if arguments.command == "run" else last_run(Path(arguments.results_path) / LAST)
    if arguments.preset not in (None, last.get("preset")):
        last = {}  # settings of one preset say nothing about another
    if arguments.select not in (None, "fixed"):
        last = last | {"kappa": None, "lambd": None}
    taken = {name: last.get(name) for name in REMEMBERED if getattr(arguments, name) in (None, [])}
    for name, value in taken.items():
        setattr(arguments, name, value)
    arguments.plugins = arguments.plugins or []
    load_plugins(arguments.plugins)
    if "also" in taken:
        taken["also"] = arguments.also = still_there(arguments.also)
    words = {name: " ".join(value) if isinstance(value, list) else value for name, value in taken.items()}
    if shown := [f"--{name} {value}" for name, value in words.items() if value and value != "fixed"]:
        print(f"as in the last run ({arguments.results_path}/{LAST}): {' '.join(shown)}", file=sys.stderr)
    arguments.preset = arguments.preset or "paper"
    arguments.select = arguments.select or "fixed"


def last_run(path: Path) -> dict:
    try:
        last = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(last, dict):
        return {}
    named = last.get("plugins")
    known = [str(name) for name in named] if isinstance(named, list) else []
    if gone := [name for name in known if os.sep in name and not Path(name).is_dir()]:
        print(f"note: the last run's plug-ins {', '.join(gone)} are gone", file=sys.stderr)
    return last | {"plugins": [name for name in known if name not in gone] or None}


def still_there(also: str | None) -> str | None:
    """Of the norms and methods that the last run also had: one may have gone since."""
    known = {*REGISTERED_NORMS.names(), *REGISTERED_MODELS.names()}
    return ",".join(name for name in str(also or "").split(",") if name in known) or None


def remember(arguments) -> None:
    path = Path(arguments.results_path) / LAST
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {name: getattr(arguments, name) for name in REMEMBERED})
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise UsageError(f"cannot write to {path.parent}: {error.strerror}; set --results_path") from None
        print(
            f"warning: cannot write {path}: {error.strerror}; `report` must be told what this is about", file=sys.stderr
        )


def own_study_of(arguments) -> OwnStudy | None:
    """The file that a command names in place of tables and figures."""
    files = [word for word in arguments.ids if word.endswith(".toml")]
    if not files:
        return None
    if len(arguments.ids) > 1 or arguments.preset or arguments.select not in (None, "fixed"):
        raise UsageError("a study of one's own stands alone: no other ids, no --preset and no --select with it")
    path = Path(files[0])
    study_plugins = named_plugins(path)
    load_plugins([*study_plugins, *(arguments.plugins or [])])
    arguments.plugins = [*study_plugins, *(arguments.plugins or [])]
    return read_study(path)


def chosen_plans(ids: list[str], preset: Preset) -> list[Plan]:
    """By their ids; `all` are the paper's, `studies` the others. `core:cifar10` is the part of a plan on that data."""
    known, chosen = PLANS | STUDIES, {}
    for word in ids:
        id, _, data = word.partition(":")
        if id not in {"all", "studies", *known}:
            raise UsageError(
                f"unknown table, figure or study {id!r}{close_matches(id, list(known))} "
                f"All: all, studies, {', '.join(known)}"
            )
        if data and data not in preset.data:
            raise UsageError(f"{word}: preset {preset.name} has no data {data!r}; it has {', '.join(preset.data)}")
        for plan in {"all": PLANS, "studies": STUDIES}.get(id, {id: known.get(id)}).values():
            chosen[plan.id, data] = part_of(plan, data) if data else plan
    return list(chosen.values())


def part_of(plan: Plan, data: str) -> Plan:
    def cells(preset: Preset) -> Iterator[Cell]:
        return (cell for cell in plan.cells(preset) if cell.experiment.data == data)

    return replace(plan, cells=cells)


def with_also(preset: Preset, also: str | None) -> Preset:
    """Further norms and methods, a row each."""
    names = tuple(also.split(",")) if also else ()
    models = tuple(name for name in names if name in REGISTERED_MODELS.names())
    norms = tuple(name for name in names if name not in models)
    for name in norms:
        REGISTERED_NORMS.get(name)
    return replace(
        preset,
        also=tuple(norm for norm in norms if norm not in NORMS),
        also_models=tuple(model for model in models if model not in ("er_ace", "derpp")),
    )


def selection_of(arguments, preset: Preset | None = None) -> Selection:
    preset = preset or with_also(PRESETS[arguments.preset], arguments.also)
    if preset.needs_base_path and not arguments.base_path:
        raise UsageError(f"--preset {preset.name} needs --base_path, a folder of images as seq-folder reads it")
    seeds = preset.seeds
    if arguments.seeds:
        try:
            seeds = seeds_of(arguments.seeds)
        except ArgumentTypeError as error:
            raise UsageError(f"--seeds {error}") from None
    given = tuple(
        (name, getattr(arguments, name)) for name in ("kappa", "lambd") if getattr(arguments, name) is not None
    )
    if given and arguments.select != "fixed":
        raise UsageError("--kappa and --lambd are for --select fixed")
    threads = getattr(arguments, "num_threads", 1)
    runs = Runs(preset, arguments.results_path, arguments.base_path, tuple(arguments.plugins), threads)
    return Selection(arguments.select, runs, seeds, given)


def set_up(arguments) -> tuple[list[Plan], Selection]:
    if study := own_study_of(arguments):
        arguments.preset, arguments.select = study.path.stem, "fixed"
        return list(study.plans().values()), selection_of(arguments, study.preset())
    settled(arguments)
    return chosen_plans(arguments.ids, PRESETS[arguments.preset]), selection_of(arguments)
