"""`--config FILE`: the flags of a command as a file.

The file is TOML with one key per flag, such as `lr = 0.1`, as `--dry_run` prints it, or the `record.json` or
`config.json` of a run. Values become words of a command and are checked as such; flags of the command win. Of a run's
files only what identifies the run is used: paths and output options in them are ignored.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from utils.config.options import Option, flag
from utils.errors import UsageError


def read(path: str) -> tuple[dict[str, Any], bool]:
    """Return the options of a file, and whether they are a run's, with those that do not identify it."""
    is_json = path.endswith(".json")
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = json.loads(text) if is_json else tomllib.loads(text)
    except (OSError, ValueError) as error:
        kind = "JSON" if is_json else "TOML"
        raise UsageError(f"--config: cannot read {path} as {kind}: {getattr(error, 'strerror', error)}") from None
    if is_json and isinstance(content, dict):
        content = content.get("config", content)
    if not isinstance(content, dict):
        raise UsageError(f"--config {path} has no options; give a TOML file, or a run's record.json or config.json")
    return content, is_json


def as_words(values: dict[str, Any], options: dict[str, Option]) -> Iterator[str]:
    """Yield the words of a command that gives these values."""
    for name, value in values.items():
        if name in options and options[name].type is flag:
            if not isinstance(value, bool):
                raise UsageError(f"{name} must be true or false (got {value!r})")
            yield from [f"--{name}"] * value
        elif isinstance(value, dict):
            raise UsageError(f"{name} is a table; write options without sections, such as lr = 0.1")
        elif isinstance(value, list | tuple):
            yield f"--{name}={','.join(map(str, value)) or 'none'}"
        else:
            yield f"--{name}={value}"


def toml_line(name: str, value: Any) -> str:
    """Return a line of a file. What JSON and TOML write differently is not among the values of options."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f"{name} = {text}".replace("\x7f", r"\u007f")
