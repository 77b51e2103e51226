"""`--plugins FOLDER_OR_MODULE`: norms, methods, data sets and backbones that live outside the checkout.

Every file of a folder is imported, as a module of a package of the folder's name, so that the files may import each
other with `from . import`; a module is imported by its name. Both register what they have as the project's own do.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from utils.config.registry import REGISTRIES
from utils.errors import UsageError

PLUGINS_VARIABLE = "ADAB2N_PLUGINS"


def given_plugins(argv: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """Those of the environment, `more`, and those of a command's words, each once. Known before the parser is: they
    have flags too."""
    named = [*os.environ.get(PLUGINS_VARIABLE, "").split(os.pathsep), *more]
    taking = False
    for word in argv:
        if word.startswith("-"):
            name, given, value = word.partition("=")
            taking = name == "--plugins" and not given
            if name == "--plugins" and given:
                named.append(value)
        elif taking:
            named.append(word)
    return [str(name) for name in dict.fromkeys(portable(name) for name in named if name)]


def portable(name: str) -> str:
    """The same plug-in in every working directory: folders with their whole path."""
    try:
        return os.fspath(Path(name).resolve()) if _is_folder(name) else name
    except ValueError as error:  # a byte that no name has
        raise UsageError(f"--plugins {name[:80]!r}: {error}; give a folder or a module's name") from None


def _is_folder(name: str) -> bool:
    try:
        return os.sep in name or Path(name).is_dir()
    except OSError as error:
        raise UsageError(f"--plugins {name[:80]!r}: {error.strerror}; give a folder or a module's name") from None


def load_plugins(names: Sequence[str]) -> None:
    """Import them; those that are already imported are left alone. The project's own come first: a name that is taken
    is the plug-in's mistake."""
    if names:
        for registry in REGISTRIES:
            registry.entries()
    for name in names:
        if _is_folder(name):
            try:
                _load_folder(Path(name).resolve())
            except OSError as error:
                raise UsageError(f"--plugins {name[:80]!r}: {error.strerror}; give a folder that can be read") from None
        else:
            _import(name, name)


def _load_folder(folder: Path) -> None:
    if folder.is_file():
        raise UsageError(f"--plugins {folder} is a file: name the folder that it lies in")
    if not folder.is_dir():
        raise UsageError(f"--plugins {folder}: no such folder; give a folder with Python files, or a module's name")
    files = sorted(path for path in folder.glob("*.py") if path.stem != "__init__")
    if not files:
        raise UsageError(f"--plugins {folder}: no Python files in it; a norm or method of your own is a file there")
    package = f"plugins_{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}_{_identifier(folder.name)}"
    if package not in sys.modules:
        spec = ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [os.fspath(folder)]
        sys.modules[package] = importlib.util.module_from_spec(spec)
    for path in files:
        if not path.stem.isidentifier():
            raise UsageError(f"--plugins {folder}: {path.name} is no module name; use letters, digits and underscores")
        _import(f"{package}.{path.stem}", os.fspath(path))


def _identifier(name: str) -> str:
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name)


def _import(module: str, shown: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise _refusal(shown, error) from error
        raise UsageError(
            f"--plugins {shown}: no folder of that name here, and no module: No module named {module!r}"
        ) from error
    except (Exception, SystemExit) as error:
        raise _refusal(shown, error) from error


def _refusal(shown: str, error: BaseException) -> UsageError:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == shown]
    where = f"{shown}, line {lines[-1]}" if lines else shown
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return UsageError(f"--plugins: cannot import {where}: {reason}")
