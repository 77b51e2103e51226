"""Studies as TOML files: what varies, what the rows and columns of the table are, and what is compared.

docs/reproduce.md has the format. A study becomes a preset and plans, so that launchers, resuming, status and reports
work as for the paper's tables. The studies in `builtin` use a preset's data sets (`data`, with the smaller buffer of
each) instead of their own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from utils.config.loop_options import LARGEST_SEED
from utils.config.parser import parse
from utils.config.registry import close_matches
from utils.config.resolve import resolve
from utils.errors import UsageError
from utils.studies.plans import DOMAIN_IL, METHODS, SETTINGS, Cell, Experiment, Plan, title_of
from utils.studies.presets import Preset, PresetDataset
from utils.tables import METRICS, TITLES

KEYS = {
    "title": str, "seeds": list, "rows": list, "columns": list, "metrics": list, "compare": dict, "plugins": list,
    "common": dict, "vary": dict, "variant": list, "with": list,
}  # fmt: skip
KINDS = {str: "text", list: "list", dict: "table"}
OWN_DATA = "study"  # the key of the data set of a study that names its own
PAIRED = "Differences in percentage points, paired by seed."

KNOWN_METRICS = {f"{setting}_{metric}": (setting, metric) for setting in (*SETTINGS, DOMAIN_IL) for metric in METRICS}

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
        plans = {id: Plan(id, self.title, self.cells, self.note, first_seed_only=self.first_seed_only)}
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
            for setting, metric in (KNOWN_METRICS[name] for name in self.metrics):
                texts |= {"setting": TITLES[setting], "metric": self.titles.get(metric, METRICS[metric])}
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
        rest = tuple(
            (name, getattr(preset, name) if value == "preset" else flag_value(name, value))
            for name, value in flags.items()
            if name not in ("model", "norm")
        )
        buffer = preset.data[point["data"]].buffers[0] if self.data else None
        return Experiment(flags["model"], flags.get("norm", "bn"), point["data"], buffer, rest)


def _text(name: str, value: Any) -> str:
    return METHODS.get(value, value) if name == "model" else title_of(value) if name == "norm" else str(value)


def flag_value(name: str, value: Any) -> Any:
    """Return a flag's value as the command line reads it."""
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return _parsed(f"--{name}" if value is True else f"--{name}={text}")[name]


_parsed = cache(lambda word: parse([word]))


# --- reading ----------------------------------------------------------------------------------------------------------


def _content(path: Path) -> Values:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is no TOML file: {error}") from None


def named_plugins(path: Path) -> list[str]:
    """Return the plug-ins that the file names, folders as absolute paths. Its flags are checked after loading them."""
    names = map(str, _content(path).get("plugins", []))
    return [str((path.parent / name).resolve()) if (path.parent / name).is_dir() else name for name in names]


def read_study(path: Path) -> TomlStudy:
    content = _content(path)
    try:
        _check(content)
        study = TomlStudy(path, content)
        _require(sorted([*study.rows, *study.columns]) == sorted(study.varying),
                 f"rows and columns together must be what varies, each once: {', '.join(study.varying)}")  # fmt: skip
        for plan in study.plans().values():  # mistakes in flags show before anything runs
            for cell in plan.cells(study.preset()):
                for experiment in cell.comparison.experiments:
                    resolve(dict(experiment.flags) | {"model": experiment.model, "norm": experiment.norm})
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return study


def _require(condition: object, message: str) -> None:
    if not condition:
        raise UsageError(message)


def _check(content: Values) -> None:
    """Raise a UsageError if a key is unknown or its value has another form than it must have."""
    for name, value in content.items():
        _require(name in KEYS, f"unknown key {name!r}{close_matches(name, sorted(KEYS))}")
        _require(isinstance(value, KEYS[name]), f"{name} must be a {KINDS[KEYS[name]]}")
    vary, seeds, variants = content.get("vary", {}), content.get("seeds", [0]), content.get("variant", [])
    for name, values in vary.items():
        _require(isinstance(values, list) and values, f"vary.{name} must be a list of values, such as [1, 2]")
        _require(name not in content.get("common", {}), f"{name} stands under [common] and under [vary]")
    for key, needed in (("variant", {"name", "flags"}), ("with", {"when", "flags"})):
        complete = all(needed <= {*table} <= needed | {"baseline"} for table in content.get(key, []))
        _require(complete, f"every [[{key}]] needs {' and '.join(sorted(needed, reverse=True))}")
    _require(vary or variants, "nothing varies; put flags with lists of values under [vary], or write [[variant]]")
    names = [variant["name"] for variant in variants]
    _require(len({*names}) == len(names), "every [[variant]] needs a name of its own")
    for name in content.get("metrics", []):
        matches = close_matches(name, list(KNOWN_METRICS))
        _require(name in KNOWN_METRICS, f"unknown metric {name!r}{matches} Known: {', '.join(KNOWN_METRICS)}")
    valid = all(type(seed) is int and 0 <= seed <= LARGEST_SEED for seed in seeds)
    _require(valid and seeds and len({*seeds}) == len(seeds),
             f"seeds must be different whole numbers such as [0, 1, 2], up to {LARGEST_SEED}")  # fmt: skip
    compare = content.get("compare", {})
    _require(len(compare) <= 1, 'compare must name one thing that varies and its value, such as { norm = "bn" }')
    for name, value in compare.items():
        varies = value in (vary | {"variant": names}).get(name, [])
        _require(varies, f"compare: {name} = {value!r} is not among what varies")


_IDS = ("core", "batching", "cn-affine", "parts", "switches", "kappa-lambda", "divergence", "anytime", "weights")
STUDIES: dict[str, Plan] = {}
for _path in (Path(__file__).with_name("builtin") / f"{_id}.toml" for _id in _IDS):
    STUDIES |= TomlStudy(_path, _content(_path)).plans()
