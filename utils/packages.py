"""Packages that only some runs need: where one is missing, one line says for what and what to do."""

from __future__ import annotations

import importlib
from importlib import metadata
from types import ModuleType

from utils.errors import UsageError


def needed(package: str, by: str, install: str = "-r requirements.txt") -> ModuleType:
    try:
        return importlib.import_module(package)
    except (ImportError, OSError, RuntimeError) as error:  # missing, or built for another torch
        raise UsageError(f"{by} needs {package} ({error}): pip install {install}") from error


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
