"""Which code made a number: the SHA-256 of every source file that can change the numbers of a run.

These are the files of the chosen parts with what they take from the packages of parts, the training loop with the
buffers, and with plug-ins every loaded module that lies in their folders or on PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from utils.config.registry import REGISTRIES
from utils.config.resolve import Config, selected_entries

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("backbone", "datasets", "models", "utils")
IN_RUN = ("build", "training", "evaluation", "eval_statistics", "metrics")
LOOP = ("utils/data/*.py", "utils/step.py", *(f"utils/run/{name}.py" for name in IN_RUN))
SUFFIXES = (".py", ".c")


def code_digests(config: Config) -> dict[str, str]:
    """Return the digests of a run's source files by name.

    To be called right after the imports: a file may be edited while the run goes on with the code it has imported.
    """
    modules: set[str] = set()
    for entry in selected_entries(vars(config)).values():
        # Without utils, of which LOOP has what counts.
        packages = {"backbone", "datasets", "models", entry.module.partition(".")[0]} - {"utils"}
        bases = getattr(entry.build, "__mro__", (entry.build,))
        for name in (entry.module, *(base.__module__ for base in bases)):
            _add_module(name, packages, modules)
    modules.update(_plugin_modules(config.plugins) if config.plugins else ())
    files = {_relative(path): path for pattern in LOOP for path in REPOSITORY.glob(pattern)}
    files.update(file for name in modules for file in _source_files(name))
    return {name: _file_digest(files[name]) for name in sorted(files)}


def changed_files(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return the files of `before` that differ or are not loaded now; new ones do not count."""
    changed = [name for name in sorted(before) if before[name] != now.get(name)]
    return [name if name in now else f"{name} (not loaded now)" for name in changed]


def shortened(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def read_project_files() -> None:
    """Compute the digests of all project files now, for a server whose forks keep the code that it has imported."""
    for path in (path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.*")):
        if path.suffix in SUFFIXES:
            _file_digest(path)


@cache
def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _add_module(name: str, packages: set[str], modules: set[str]) -> None:
    """Add the name of a module, and those of the modules of these packages that its global names come from."""
    if name in modules or name.partition(".")[0] not in packages:
        return
    modules.add(name)
    for value in list(vars(sys.modules[name]).values()):
        origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        is_submodule = isinstance(value, ModuleType) and value.__name__.startswith(f"{name}.")  # loaded by anybody
        if origin in sys.modules and not is_submodule:
            _add_module(origin, packages, modules)


def _plugin_modules(plugins: tuple[str, ...]) -> Iterator[str]:
    folders = [*plugins, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    roots = [Path(folder).resolve() for folder in folders if os.path.isdir(folder)]
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or os.devnull).resolve()
        is_own = name.partition(".")[0] in (*PACKAGES, "main", "__main__", "scripts", "tests")
        is_elsewhere = is_own or "site-packages" in path.parts or not path.is_file()  # torch has made-up paths
        if not is_elsewhere and any(path.is_relative_to(root) for root in roots):
            yield name


def _source_files(module: str) -> Iterator[tuple[str, Path]]:
    """Yield the file of a module; of a package of helpers, which may import each other when needed, all files."""
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        return
    path = Path(file).resolve()
    if module.partition(".")[0] not in PACKAGES:
        yield re.sub("^plugins_[0-9a-f]{8}_", "", module).replace(".", "/") + path.suffix, path
    elif module.rpartition(".")[0] in {registry.package for registry in REGISTRIES}:
        yield _relative(path), path
    else:
        yield from ((_relative(other), other) for other in path.parent.iterdir() if other.suffix in SUFFIXES)


def _relative(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()
