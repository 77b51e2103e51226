"""Studies as TOML files: what varies, what the rows and columns of the table are, and what is compared.

docs/reproduce.md has the format. A study becomes a preset and plans, so that launchers, resuming, status and reports
work as for the paper's tables. The studies in `builtin` use a preset's data sets (`data`, with the smaller buffer of
each) instead of their own.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from utils.config.loop_options import LARGEST_SEED
from utils.config.parser import parse
from utils.config.registry import OBSERVERS, close_matches
from utils.config.resolve import SELECTORS, identity_options, new_names, number_options, options_by_name, resolve
from utils.errors import UsageError
from utils.studies.confirm import CONFIRM
from utils.studies.plans import DOMAIN_IL, METHODS, PLANS, SETTINGS, TASK_IL, Cell, Experiment, Plan, title_of
from utils.studies.presets import PRESETS, Preset, PresetDataset
from utils.tables import TITLES, metric_titles

KEYS = {
    "title": str, "seeds": list, "rows": list, "columns": list, "metrics": list, "compare": dict, "plugins": list,
    "common": dict, "vary": dict, "variant": list, "with": list,
}  # fmt: skip
KINDS = {str: "text", list: "list", dict: "table"}
OWN_DATA = "study"  # the key of the data set of a study that names its own
PAIRED = "Differences in percentage points, paired by seed."
MOST_RUNS = 10_000  # of a study; more is a slip

Values = dict[str, Any]


class TomlStudy:
    """A study as its file describes it. `content` is valid: `read_study` checks it."""

    def __init__(self, path: Path, content: Values):
        self.path = path
        self.title: str = str(content.get("title", path.stem))
        self.note: str = content.get("note", "")
        self.first_seed_only: bool = content.get("first_seed_only", False)
        self.seeds: tuple[int, ...] = tuple(content.get("seeds", [0]))
        self.data: list[str] = content.get("data", [])  # of a preset; empty if the flags name a data set
        self.common: Values = content.get("common", {})
        self.vary: dict[str, list[Any]] = content.get("vary", {})
        self.further: list[dict[str, Values]] = content.get("with", [])
        self.variants: dict[str, Values] = {variant["name"]: variant for variant in content.get("variant", [])}
        self.compare: Values = content.get("compare", {})
        self.metrics: list[str] = content.get("metrics", ["class_il_faa", "task_il_faa"])
        self.titles: dict[str, str] = content.get("titles", {})
        self.varying = [*self.vary, *(["variant"] if self.variants else [])]
        self.rows: list[str] = content.get("rows", self.varying[:1] if "columns" in content else self.varying)
        self.columns: list[str] = content.get("columns", [name for name in self.varying if name not in self.rows])
        self.row: str = content.get("row", " w/ ".join(f"{{{name}}}" for name in self.rows))

    def preset(self) -> Preset:
        data = PresetDataset(str(self.common.get("dataset", "all data sets")), {}, (), ())
        return Preset(self.path.stem, self.title, self.seeds, (), {OWN_DATA: data}, differs="A study of one's own.")

    def plans(self) -> dict[str, Plan]:
        id = self.path.stem
        values = self.vary.get(self.columns[0], [""]) if len(self.columns) == 1 else [""]
        x_axis = self.columns[0] if all(type(value) in (int, float) for value in values) else ""
        first_seed_only = self.first_seed_only
        plans = {id: Plan(id, self.title, self.cells, self.note, first_seed_only=first_seed_only, x_axis=x_axis)}
        for name, value in self.compare.items():
            title = f"{self.title}: differences to {name} = {_text(name, value)}"
            plans[f"{id}-gains"] = Plan(f"{id}-gains", title, partial(self.cells, gains=True), PAIRED)
        return plans

    def cells(self, preset: Preset, *, gains: bool = False) -> Iterator[Cell]:
        """Yield a cell for every combination and metric; with `gains`, the differences that `compare` asks for."""
        values = self.vary | {"variant": list(self.variants), "data": self.data or [OWN_DATA]}
        if self.data and "norm" in self.vary:
            values["norm"] = [*self.vary["norm"], *preset.also]
        names = list(dict.fromkeys([*self.rows, *(name for name in self.columns if name in values), "data"]))
        for combination in product(*(values[name] for name in names)):
            point = dict(zip(names, combination, strict=True))
            if gains and self.compare.items() <= point.items():
                continue
            experiment, baseline = self._experiment(point, preset), None
            if gains:
                baseline = self._experiment(point | self.compare, preset)
            elif "baseline" in self.variants.get(point.get("variant", ""), {}):
                baseline = self._experiment(point, preset, "baseline")
            texts = {name: _text(name, value) for name, value in point.items()}
            texts["data"] = f"{preset.data[experiment.data].title}, M = {experiment.buffer}" if self.data else ""
            columns = self.columns if self.data else [*self.columns, "setting", "metric"]
            group = texts[self.rows[0]] if len(self.rows) > 1 else "" if "data" in columns else texts["data"]
            for setting, metric in (known_metrics()[name] for name in self.metrics):
                texts |= {"setting": TITLES[setting], "metric": self.titles.get(metric, metric_titles()[metric])}
                column = tuple(f"{name} = {texts[name]}" if name in self.vary else texts[name] for name in columns)
                path = ("results", setting, "metrics", metric)
                yield Cell(group, self.row.format(**texts), column, experiment, path, baseline=baseline)

    def _experiment(self, point: Values, preset: Preset, variant_flags: str = "flags") -> Experiment:
        flags = self.common | {name: point[name] for name in self.vary}
        if self.variants:
            flags |= self.variants[point["variant"]][variant_flags]
        for part in self.further:
            if part["when"].items() <= flags.items():
                flags |= part["flags"]
        if "model" not in flags:
            raise UsageError("no model; put one under [common], or several under [vary]")
        parts = tuple(f"--{name}={flags[name]}" for name in SELECTORS if name in flags)
        rest = tuple(
            (name, getattr(preset, name) if value == "preset" else flag_value(name, value, parts))
            for name, value in flags.items()
            if name not in ("model", "norm")
        )
        buffer = preset.data[point["data"]].buffers[0] if self.data else None
        return Experiment(flags["model"], flags.get("norm", "bn"), point["data"], buffer, rest)


def known_metrics() -> dict[str, tuple[str, str]]:
    """Return setting and metric by the name that a study gives them, such as class_il_faa."""
    settings = (*SETTINGS, DOMAIN_IL)
    return {f"{setting}_{metric}": (setting, metric) for setting in settings for metric in metric_titles()}


def _text(name: str, value: Any) -> str:
    return METHODS.get(value, value) if name == "model" else title_of(value) if name == "norm" else str(value)


def flag_value(name: str, value: Any, parts: tuple[str, ...] = ()) -> Any:
    """Return a flag's value as the command line reads it beside the flags that choose the parts."""
    if isinstance(value, bool):
        word = f"--{name}"
    else:
        word = f"--{name}={','.join(map(str, value)) or 'none' if isinstance(value, list) else value}"
    values = _parsed(*parts, word)
    return values[name if name in values else new_names()[name]] if value is not False else False


_parsed = cache(lambda *words: parse(words))


# --- reading ----------------------------------------------------------------------------------------------------------


def _content(path: Path) -> Values:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no TOML file: {error}") from None


def named_plugins(path: Path) -> list[str]:
    """Return the plug-ins that the file names, folders as absolute paths. Its flags are checked after loading them."""
    names = _content(path).get("plugins", [])
    is_valid = isinstance(names, list) and all(isinstance(name, str) for name in names)
    _require(is_valid, f"{path}: plugins must be a list of folders or modules")
    return [str((path.parent / name).resolve()) if (path.parent / name).is_dir() else name for name in names]


def read_study(path: Path) -> TomlStudy:
    """Return the study in a file; raise UsageError, before anything runs, if it cannot be run as it is."""
    content = _content(path)
    try:
        _check_name(path.stem)
        _check(content)
        study = TomlStudy(path, content)
        _require(sorted(map(str, [*study.rows, *study.columns])) == sorted(study.varying),
                 f"rows and columns together must be what varies, each once: {', '.join(study.varying)}")  # fmt: skip
        n_runs = math.prod(map(len, [*study.vary.values(), study.variants or [""], study.seeds]))
        _require(n_runs <= MOST_RUNS, f"{n_runs:,} runs; a study has at most {MOST_RUNS:,}")
        _check_runs(study)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return study


def _require(condition: object, message: str) -> None:
    if not condition:
        raise UsageError(message)


def _check_name(name: str) -> None:
    """Raise a UsageError if a report of this name would replace another one, or cannot be a file's."""
    reserved = {"all", "studies", "confirm", "report", "index", *PRESETS, *PLANS, *STUDIES, *CONFIRM}
    _require(name.lower() not in reserved, f"a report called {name} is not a study's; rename the file")
    _require(re.fullmatch(r"\w[\w.-]{0,99}", name), "a study's file name has letters, digits and _.- only; rename it")


def _check(content: Values) -> None:
    """Raise a UsageError if a key or flag is unknown, or a value has another form than it must have.

    Values of flags are checked where they are parsed.
    """
    for name, value in content.items():
        _require(name in KEYS, f"unknown key {name!r}{close_matches(name, sorted(KEYS))}")
        _require(isinstance(value, KEYS[name]), f"{name} must be a {KINDS[KEYS[name]]}")
    common, vary, compare = (content.get(name, {}) for name in ("common", "vary", "compare"))
    flags = [*common, *vary]
    for name, values in vary.items():
        _require(isinstance(values, list) and values, f"vary.{name} must be a list of values, such as [1, 2]")
        _require(name not in common, f"{name} stands under [common] and under [vary]")
    for key, needed, optional in (("variant", {"name", "flags"}, {"baseline"}), ("with", {"when", "flags"}, set())):
        for table in content.get(key, []):
            complete = isinstance(table, dict) and needed <= {*table} <= needed | optional
            _require(complete, f"every [[{key}]] needs {' and '.join(sorted(needed, reverse=True))}")
            for part in table.keys() - {"name"}:
                _require(isinstance(table[part], dict), f"{part} of [[{key}]] must be a table, such as {{ lr = 0.1 }}")
                flags += table[part]
    known = {*SELECTORS, *options_by_name(), *new_names()}
    known |= {f"{selector}_{name}" for selector in SELECTORS for name in known}  # of owners that share a name
    for name in flags:
        _require(name in known, f"unknown flag --{name}{close_matches(name, sorted(known))}")
        _require(name != "seed", "seed is no flag of a study; write seeds = [0, 1] at the top of the file")
    names = [variant["name"] for variant in content.get("variant", [])]
    _require(vary or names, "nothing varies; put flags with lists of values under [vary], or write [[variant]]")
    _require(len({*names}) == len(names), "every [[variant]] needs a name of its own")
    metrics = list(known_metrics())
    for name in content.get("metrics", []):
        matches = close_matches(str(name), metrics)
        _require(name in metrics, f"unknown metric {name!r}{matches} Known: {', '.join(metrics)}")
    seeds = content.get("seeds", [0])
    valid = all(type(seed) is int and 0 <= seed <= LARGEST_SEED for seed in seeds)
    _require(valid and seeds and len({*seeds}) == len(seeds),
             f"seeds must be different whole numbers such as [0, 1, 2], up to {LARGEST_SEED}")  # fmt: skip
    _require(len(compare) <= 1, 'compare must name one thing that varies and its value, such as { norm = "bn" }')
    for name, value in compare.items():
        varies = value in (vary | {"variant": names}).get(name, [])
        _require(varies, f"compare: {name} = {value!r} is not among what varies")


def _check_runs(study: TomlStudy) -> None:
    """Raise a UsageError if flags contradict each other, do not identify a run, or two rows describe the same run."""
    names = new_names()
    observed = {option.name for entry in OBSERVERS.entries().values() for option in entry.options}
    identities: dict[Experiment, str] = {}
    titles: dict[tuple[Any, ...], str] = {}
    for plan in study.plans().values():
        for cell in plan.cells(study.preset()):
            for experiment in cell.comparison.experiments:
                boundary = dict(experiment.flags).get("boundary", "sharp")
                _require(boundary == "sharp" or cell.metric[1] != TASK_IL,
                         f'Task-IL needs the boundaries that boundary = "{boundary}" lacks; set metrics = '
                         '["class_il_faa"]')  # fmt: skip
                if experiment in identities:
                    continue
                flags = dict(experiment.flags)
                config = resolve(flags | {"model": experiment.model, "norm": experiment.norm})
                # --fidelity sets options that identify a run; observers do not, but a study may want what they log.
                numbers = {*number_options(config), "fidelity", "probe", *observed}
                for name in flags:
                    _require(names.get(name, name) in numbers, f"--{name} does not identify a run; remove it")
                identities[experiment] = json.dumps(identity_options(config), sort_keys=True, default=str)
            runs = tuple(identities[experiment] for experiment in cell.comparison.experiments)
            title = f"{cell.row}, {', '.join(cell.column)}"
            _require(len({*runs}) == len(runs), f"{title}: the difference of a run to itself")
            other = titles.get((plan.id, cell.metric, runs))
            _require(other is None, f"{other!r} and {title!r} are the same run; let them differ in a flag that counts")
            _require((plan.id, title) not in titles, f"two rows are called {title!r}")
            titles |= {(plan.id, cell.metric, runs): title, (plan.id, title): title}


_IDS = ("core", "batching", "cn-affine", "parts", "switches", "kappa-lambda", "divergence", "anytime", "weights")
STUDIES: dict[str, Plan] = {}
for _path in (Path(__file__).with_name("builtin") / f"{_id}.toml" for _id in _IDS):
    STUDIES |= TomlStudy(_path, _content(_path)).plans()
