"""`--plugins FOLDER_OR_MODULE`: norms, methods, data sets and backbones that live outside the checkout.

Every file of a folder is imported as a module of a package named after the folder, so that the files may import each
other with `from . import`. A module is imported by its name. Both register their parts as the project's own files do.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from utils.config.registry import REGISTRIES
from utils.errors import UsageError

PLUGINS_VARIABLE = "ADAB2N_PLUGINS"


def early_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return what must be known before the parser is built, since plug-ins have flags too."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--plugins", nargs="*", action="extend", default=[])
    for name in ("config", "model", "norm", "dataset", "backbone"):
        parser.add_argument(f"--{name}", nargs="?")
    return parser.parse_known_args(argv)[0]


def given_plugins(argv: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """Return the plug-ins of the environment, `more`, and those of a command, each once."""
    names = [*os.environ.get(PLUGINS_VARIABLE, "").split(os.pathsep), *more, *early_arguments(argv).plugins]
    return list(dict.fromkeys(absolute(name) for name in names if name))


def absolute(name: str) -> str:
    """Return a module's name as it is, and a folder with its whole path, which is valid in every working directory."""
    return os.path.realpath(name) if os.sep in name or os.path.isdir(name) else name


def load_plugins(names: Sequence[str]) -> None:
    """Import plug-ins that are not imported yet, after the project's own parts, which own their names."""
    if names:
        for registry in REGISTRIES:
            registry.entries()
    for name in names:
        if os.sep in absolute(name):
            _load_folder(Path(absolute(name)))
        else:
            _import(name, name)


def _load_folder(folder: Path) -> None:
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".py" and path.stem != "__init__")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--plugins {str(folder)[:200]}: {reason}; give a folder with Python files, or a module's name"
        ) from None
    if not files:
        raise UsageError(f"--plugins {folder} has no Python files; give a folder with your norms, methods or data sets")
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    package = f"plugins_{digest}_{re.sub('[^0-9A-Za-z]', '_', folder.name)}"
    if package not in sys.modules:
        spec = ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [os.fspath(folder)]
        sys.modules[package] = importlib.util.module_from_spec(spec)
    for path in files:
        if not path.stem.isidentifier():
            raise UsageError(f"--plugins {folder}: {path.name} is no module name; use letters, digits and underscores")
        _import(f"{package}.{path.stem}", os.fspath(path))


def _import(module: str, shown: str) -> None:
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            raise UsageError(f"--plugins {shown}: no folder and no module of that name") from error
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == shown]
        where = f"{shown}, line {lines[-1]}" if lines else shown
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"--plugins: cannot import {where}: {reason}") from error
