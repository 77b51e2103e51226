"""Which code made a number: a digest of every source file that a run goes through.

These are the modules that register the chosen model, norm, data set and backbone, the training loop, and all that they
import within the project and the plug-ins, C sources beside them included. What a file says counts, not how: comments,
docstrings and layout are left out. Imports for type checkers do not count: what only watches a run is not among them.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from utils.config.arguments import SELECTORS, Config

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("backbone", "datasets", "models", "utils")
LOOP = ("utils.run.build", "utils.run.training")
INSTALLED = {"site-packages", "dist-packages"}


def sources_of(config: Config) -> dict[str, str]:
    """Digests by file: within the checkout by its path there, of a plug-in by the folder's name and its own."""
    entries = [registry.get(getattr(config, name)) for name, registry in SELECTORS.items()]
    modules = {module for entry in entries for module in (entry.module, entry.build.__module__)}
    return dict(_closure((*LOOP, *sorted(modules))))


def changed_sources(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Files that differ, with a word where one is new or gone."""
    words = {(True, True): "", (False, True): " (new)", (True, False): " (gone)"}
    return [
        f"{name}{words[name in before, name in now]}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def shortened(files: list[str], most: int = 4) -> str:
    """For one line."""
    return ", ".join(files[:most]) + (f" and {len(files) - most} more" if len(files) > most else "")


def read_now() -> None:
    """The project's files as they are: a server whose forks import nothing anew has them as they were."""
    for package in PACKAGES:
        for path in (REPOSITORY / package).rglob("*.py"):
            _digest(path)


@cache
def _closure(roots: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    homes = (REPOSITORY, *(home for root in roots if (home := _home(root))))
    found: set[Path] = set()
    waiting, seen = list(roots), set(roots)
    while waiting:
        module = waiting.pop()
        path = _file(module, homes)
        if path is None:
            continue
        found.add(path)
        named = {module.rpartition(".")[0], *_imports(path, module)} - seen
        seen |= named
        waiting += named
    found |= {source for path in found for source in path.parent.glob("*.c")}
    return tuple(sorted((_shown(path, homes), _digest(path)) for path in found))


def _home(module: str) -> Path | None:
    """Where the files of a plug-in lie: its folder or package; of an installed single file, only that."""
    top = module.partition(".")[0]
    if top in PACKAGES:
        return None
    if hasattr(sys.modules[top], "__path__"):
        return Path(next(iter(sys.modules[top].__path__))).resolve()
    path = Path(sys.modules[top].__file__).resolve()
    return path if path.parent.name in INSTALLED else path.parent


def _file(module: str, homes: tuple[Path, ...]) -> Path | None:
    """The source of a module, if it is the project's or a plug-in's."""
    top = module.partition(".")[0]
    if top in PACKAGES:
        folder = REPOSITORY.joinpath(*module.split("."))
        both = (folder / "__init__.py", folder.with_suffix(".py"))
        return next((path for path in both if path.is_file()), None)
    if not _belongs(_origin(top), homes):
        return None
    origin = _origin(module)
    return origin if _belongs(origin, homes) and origin.suffix == ".py" else None


def _origin(module: str) -> Path | None:
    """The file of a module, or the folder of a package that has none."""
    try:
        spec = _spec(module)
    except (ImportError, ValueError, AttributeError, KeyError):
        return None
    if spec is None or not (spec.has_location or spec.submodule_search_locations):
        return None
    return Path(spec.origin if spec.has_location else next(iter(spec.submodule_search_locations))).resolve()


def _spec(module: str) -> ModuleSpec | None:
    """Found without executing anything: `importlib.util.find_spec` would import the modules above it."""
    if module in sys.modules:
        return sys.modules[module].__spec__
    above, _, name = module.rpartition(".")
    if not above:
        return importlib.util.find_spec(name)
    package = _spec(above)
    places = package.submodule_search_locations if package else None
    return PathFinder.find_spec(module, places) if places else None


def _belongs(path: Path | None, homes: tuple[Path, ...]) -> bool:
    return path is not None and any(
        path.is_relative_to(home) and not {*path.relative_to(home).parts} & INSTALLED for home in homes
    )


def _imports(path: Path, module: str) -> Iterator[str]:
    """Names of modules, and of what is taken from them, which may be modules too."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in _without_type_checking(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _without_type_checking(tree: ast.AST) -> Iterator[ast.AST]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


@cache
def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # edited since it was imported
        return ast.Module([ast.Expr(ast.Constant(path.read_bytes())), ast.Pass()], [])


@cache
def _digest(path: Path) -> str:
    if path.suffix == ".py":
        meaning = "".join(_meaning(_tree(path)))
    else:
        text = path.read_text(errors="surrogateescape")
        meaning = re.sub(r"\s+", " ", re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)).strip()
    return hashlib.sha256(meaning.encode(errors="surrogateescape")).hexdigest()[:16]


def _meaning(node: ast.AST) -> Iterator[str]:
    """A tree as text that every Python writes alike: `ast.dump` has changed with its versions."""
    yield f"({type(node).__name__}"
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            value = _without_docstring(value)
        if value is None or value == [] or name in ("kind", "type_comment"):
            continue
        yield f" {name}:"
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST):
                yield from _meaning(one)
            else:
                yield f"{one!r},"
    yield ")"


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    is_docstring = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return body[1:] if is_docstring else body


def _shown(path: Path, homes: tuple[Path, ...]) -> str:
    if path.is_relative_to(REPOSITORY):
        return path.relative_to(REPOSITORY).as_posix()
    home = next(home for home in homes if path.is_relative_to(home))
    return path.relative_to(home.parent).as_posix()
