"""Packages that only some runs need."""

import importlib
from importlib import metadata
from types import ModuleType

from utils.errors import UsageError


def import_or_usage_error(package: str, by: str, install: str = "-r requirements.txt") -> ModuleType:
    """Import a package, or raise a UsageError that says what needs it and how to install it."""
    try:
        return importlib.import_module(package)
    except (ImportError, OSError, RuntimeError) as error:  # missing, or built for another torch
        raise UsageError(f"{by} needs {package} ({error}); run pip install {install}") from error


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
