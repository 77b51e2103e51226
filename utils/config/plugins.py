"""`--plugins FOLDER_OR_MODULE`: norms, methods and other parts that live outside the checkout.

Every file of a folder is imported as a module of a package named after the folder, so that the files may import each
other with `from . import`. A module is imported by its name. Both register their parts as the project's own files do.
A file of a folder that cannot be imported is named in a warning; the others are used.
"""

import argparse
import hashlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from utils.config.registry import FAILED_FILES, REGISTRIES
from utils.console import log
from utils.errors import UsageError

PLUGINS_VARIABLE = "ADAB2N_PLUGINS"


def early_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return what must be known before the parser is built, since plug-ins have flags too."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--plugins", nargs="*", action="extend", default=[])
    for name in ("config", "model", "norm", "dataset", "backbone", "buffer_mode", "probe", "scenario"):
        parser.add_argument(f"--{name}", nargs="?")
    parser.add_argument("--buffer-mode", dest="buffer_mode", nargs="?")
    return parser.parse_known_args(argv)[0]


def given_plugins(argv: Sequence[str], more: Iterable[str] = ()) -> list[str]:
    """Return the plug-ins of the environment, `more`, and those of a command, each once; folders as absolute paths."""
    names = [*os.environ.get(PLUGINS_VARIABLE, "").split(os.pathsep), *more, *early_arguments(argv).plugins]
    is_folder = {name: os.sep in name or os.path.isdir(name) for name in names if name}
    return list(dict.fromkeys(os.path.realpath(name) if folder else name for name, folder in is_folder.items()))


def load_plugins(names: Sequence[str]) -> None:
    """Import plug-ins that are not imported yet, after the project's own parts, which own their names."""
    for registry in REGISTRIES if names else ():
        registry.entries()
    for name in names:
        if os.sep in name:
            _load_folder(Path(name))
        else:
            _import(name, name)


def _load_folder(folder: Path) -> None:
    files = sorted(path for path in folder.glob("*.py") if path.stem != "__init__")
    if not files:
        raise UsageError(f"--plugins {folder} has no Python files; give a folder with your norms, methods or data sets")
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    package = ModuleType(f"plugins_{digest}_{re.sub('[^0-9A-Za-z]', '_', folder.name)}")
    package.__path__ = [os.fspath(folder)]
    sys.modules.setdefault(package.__name__, package)
    for path in files:
        try:
            _import(f"{package.__name__}.{path.stem}", os.fspath(path))
            FAILED_FILES.pop(os.fspath(path), None)
        except UsageError as error:
            if FAILED_FILES.get(os.fspath(path)) != str(error):  # plug-ins are loaded more than once in a sweep
                log.warning(f"{error}; its parts are missing")
            FAILED_FILES[os.fspath(path)] = str(error)


def _import(module: str, source: str) -> None:
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        for registry in REGISTRIES:  # what it registered before it failed
            for name in [entry.name for entry in registry.entries().values() if entry.module == module]:
                del registry.entries()[name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source]
        text = " ".join(str(error).split())
        where = f"{source}, line {lines[-1]}" if lines else source
        raise UsageError(f"--plugins: cannot import {where}: {type(error).__name__}: {text}") from error
