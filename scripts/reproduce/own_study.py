"""A study of one's own as a TOML file: what varies, what stands in rows and columns, and which comparison matters.

    title = "Which norm for replay?"
    seeds = [0, 1]
    rows = ["model", "norm"]            # a row for every combination of these
    columns = ["buffer_size"]           # the other things that vary; may be left out if rows has all
    metrics = ["class_il_faa", "task_il_faa"]
    compare = { norm = "bn" }           # a second table: every row against the one that differs in this alone
    plugins = ["mine"]                  # folders of one's own, as seen from the file; or --plugins

    [common]                            # flags of every run
    dataset = "seq-digits"

    [vary]                              # any flag, with the values that it takes
    model = ["er", "derpp"]
    norm = ["bn", "gn", "adab2n"]
    buffer_size = [50, 200]

    [[with]]                            # further flags, where these hold
    when = { norm = "gn" }
    flags = { groups = 8 }

It becomes a preset and plans, so that launchers, resuming, status and reports are those of the paper's tables.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from scripts.reproduce.plans import METHODS, SETTINGS, Cell, Experiment, Plan, title_of
from scripts.reproduce.presets import Data, Preset
from utils.config.arguments import resolve
from utils.config.loop_options import LARGEST_SEED
from utils.config.parser import parse
from utils.config.registry import close_matches
from utils.errors import UsageError
from utils.tables import METRICS, TITLES

KEYS = {"title", "seeds", "rows", "columns", "metrics", "compare", "plugins", "common", "vary", "with"}
DATA = "study"  # the key of its one entry of data
PAIRED = "Differences in percentage points, paired by seed."


@dataclass(frozen=True)
class OwnStudy:
    path: Path
    title: str
    seeds: tuple[int, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    metrics: tuple[tuple[str, str], ...]  # setting and metric
    compare: dict[str, Any]
    common: dict[str, Any]
    vary: dict[str, list[Any]]
    further: list[dict[str, dict[str, Any]]] = field(default_factory=list)

    def preset(self) -> Preset:
        title = str(self.common.get("dataset", "all data sets"))
        return Preset(
            name=self.path.stem, help=self.title, seeds=self.seeds, kappas=(), differs="A study of one's own.",
            data={DATA: Data(title, {}, (), ())},
        )  # fmt: skip

    def plans(self) -> dict[str, Plan]:
        found = {self.path.stem: Plan(self.path.stem, self.title, lambda preset: self._cells())}
        if self.compare:
            id = f"{self.path.stem}-gains"
            [(name, value)] = self.compare.items()
            title = f"{self.title}: differences to {name} = {shown(name, value)}"
            found[id] = Plan(id, title, lambda preset: self._gains(), note=PAIRED)
        return found

    def _combinations(self) -> Iterator[dict[str, Any]]:
        for values in product(*self.vary.values()):
            yield dict(zip(self.vary, values, strict=True))

    def _experiment(self, combination: dict[str, Any]) -> Experiment:
        flags = self.common | combination
        for part in self.further:
            if all(flags.get(name) == value for name, value in part["when"].items()):
                flags = flags | part["flags"]
        if "model" not in flags:
            raise UsageError("no model: put one under [common], or several under [vary]")
        rest = tuple((name, checked(name, value)) for name, value in flags.items() if name not in ("model", "norm"))
        return Experiment(flags["model"], flags.get("norm", "bn"), DATA, None, rest)

    def _cells(self) -> Iterator[Cell]:
        for combination in self._combinations():
            yield from self._of(combination, None)

    def _gains(self) -> Iterator[Cell]:
        [(name, value)] = self.compare.items()
        for combination in self._combinations():
            if combination[name] != value:
                yield from self._of(combination, combination | {name: value})

    def _of(self, combination: dict[str, Any], over: dict[str, Any] | None) -> Iterator[Cell]:
        words = [shown(name, combination[name]) for name in self.rows]
        columns = [f"{name} = {shown(name, combination[name])}" for name in self.columns]
        group = words[0] if len(words) > 1 else ""
        for setting, metric in self.metrics:
            column = (*columns, TITLES[setting], METRICS[metric])
            path = ("results", setting, "metrics", metric)
            yield Cell(group, " w/ ".join(words), column, self._experiment(combination), path,
                       over=None if over is None else self._experiment(over))  # fmt: skip


def shown(name: str, value: Any) -> str:
    return {"model": METHODS.get(value, value), "norm": title_of(value)}.get(name, str(value)) if value else str(value)


# --- reading ----------------------------------------------------------------------------------------------------------


def _content(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the study {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML file: {error}") from None


def named_plugins(path: Path) -> list[str]:
    """Those that the file names, which must be there before its flags are checked; folders as seen from the file."""
    names = _content(path).get("plugins", [])
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise UsageError(f"{path}: plugins must be a list of folders or modules")
    return [str((path.parent / name).resolve()) if (path.parent / name).is_dir() else name for name in names]


def read_study(path: Path) -> OwnStudy:
    try:
        return _checked(path, _content(path))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _checked(path: Path, content: dict[str, Any]) -> OwnStudy:
    _refuse_unknown(content, KEYS, "key")
    vary, common = _table(content, "vary"), _table(content, "common")
    if not vary:
        raise UsageError("nothing varies; put flags with lists of values under [vary]")
    for name, values in vary.items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"vary.{name} must be a list of values, such as [1, 2]")
        if name in common:
            raise UsageError(f"{name} stands under [common] and under [vary]")
    further = content.get("with", [])
    for part in further if isinstance(further, list) else [further]:
        if not (isinstance(part, dict) and {"when", "flags"} == set(part)):
            raise UsageError("every [[with]] needs `when` and `flags`, both tables")
    rows = _names(content, "rows", list(vary)[:1] if "columns" in content else list(vary))
    columns = _names(content, "columns", [name for name in vary if name not in rows])
    if sorted([*rows, *columns]) != sorted(vary):
        raise UsageError(f"rows and columns together must be what varies, each once: {', '.join(vary)}")
    study = OwnStudy(
        path=path, title=str(content.get("title", path.stem)), seeds=_seeds(content.get("seeds", [0])),
        rows=tuple(rows), columns=tuple(columns),
        metrics=tuple(_metric(name) for name in content.get("metrics", ["class_il_faa", "task_il_faa"])),
        compare=_comparison(content.get("compare", {}), vary), common=common, vary=vary, further=further,
    )  # fmt: skip
    for plan in study.plans().values():  # mistakes in flags show before anything runs
        for cell in plan.cells(study.preset()):
            resolve(dict(cell.experiment.flags) | {"model": cell.experiment.model, "norm": cell.experiment.norm})
    return study


def _table(content: dict[str, Any], name: str) -> dict[str, Any]:
    found = content.get(name, {})
    if not isinstance(found, dict):
        raise UsageError(f"[{name}] must be a table of flags")
    return found


def _refuse_unknown(found: dict[str, Any], known: set[str], what: str) -> None:
    for name in found:
        if name not in known:
            raise UsageError(f"unknown {what} {name!r}{close_matches(name, sorted(known))}")


def _names(content: dict[str, Any], key: str, default: list[str]) -> list[str]:
    names = content.get(key, default)
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise UsageError(f"{key} must be a list of names of what varies")
    return names


def _seeds(values: Any) -> tuple[int, ...]:
    whole = isinstance(values, list) and values and all(type(v) is int and 0 <= v <= LARGEST_SEED for v in values)
    if not whole or len(set(values)) < len(values):
        raise UsageError(f"seeds must be different whole numbers such as [0, 1, 2], up to {LARGEST_SEED}")
    return tuple(values)


def _metric(name: Any) -> tuple[str, str]:
    known = {f"{setting}_{metric}": (setting, metric) for setting in (*SETTINGS, "domain_il") for metric in METRICS}
    if name not in known:
        raise UsageError(f"unknown metric {name!r}{close_matches(str(name), list(known))} Known: {', '.join(known)}")
    return known[name]


def _comparison(compare: Any, vary: dict[str, list[Any]]) -> dict[str, Any]:
    if compare == {}:
        return {}
    if not (isinstance(compare, dict) and len(compare) == 1):
        raise UsageError('compare must name one thing that varies and its value, such as { norm = "bn" }')
    [(name, value)] = compare.items()
    if value not in vary.get(name, []):
        raise UsageError(f"compare: {name} = {value!r} is not among what varies")
    return compare


@cache
def _parsed(words: str) -> dict[str, Any]:
    return parse([words])


def checked(name: str, value: Any) -> Any:
    """A flag's value as the command line takes it."""
    if value is True:
        return _parsed(f"--{name}")[name]
    words = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return _parsed(f"--{name}={words}")[name]
