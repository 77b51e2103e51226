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
    except OSError as error:
        raise UsageError(f"--config {path[:200]}: {error.strerror}; give a TOML file, or a run's record.json") from None
    except ValueError as error:
        raise UsageError(f"--config {path[:200]!r} is not valid {'JSON' if is_json else 'TOML'}: {error}") from None
    if is_json and isinstance(content, dict):
        content = content.get("config", content)
    if not isinstance(content, dict):
        raise UsageError(f"--config {path} has no options; give a TOML file, or a run's record.json or config.json")
    return content, is_json


def as_words(values: dict[str, Any], options: dict[str, Option]) -> Iterator[str]:
    """Yield the words of a command that gives these values."""
    for name, value in values.items():
        option = options.get(name)
        if option and option.type is flag:
            if not isinstance(value, bool):
                raise UsageError(f"{name} must be true or false (got {value!r})")
            yield from [f"--{name}"] * value
        elif option and option.several and isinstance(value, list | tuple):
            yield from (f"--{name}={each}" for each in value)
        elif isinstance(value, dict):
            raise UsageError(f"{name} is a table; write options without sections, such as lr = 0.1")
        elif isinstance(value, list | tuple):
            yield f"--{name}={','.join(map(str, value)) or 'none'}"
        else:
            yield f"--{name}={value}"


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", r"\u007f")
