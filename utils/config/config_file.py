"""`--config FILE`: the flags of a command as a file.

The file is TOML with one key per flag, such as `lr = 0.1`, as `--dry_run` prints it, or the `record.json` or
`config.json` of a run. Values become words of a command and are checked as such; flags of the command win. Of a run's
files only what identifies the run is used: paths and output options in them are ignored.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.config.options import Option, SameAs, flag
from utils.errors import UsageError


@dataclass(frozen=True)
class ConfigFile:
    path: str
    values: dict[str, Any]
    from_record: bool = False  # with all options, also those that do not identify the run

    @property
    def plugins(self) -> list[str]:
        names = [] if self.from_record else self.values.get("plugins", [])
        names = [names] if isinstance(names, str) else names
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise UsageError(f"{self.path}: plugins must be folders or modules, such as ['mine'] (got {names!r})")
        return names


def read(path: str) -> ConfigFile:
    is_json = path.endswith(".json")
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = json.loads(text) if is_json else tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"--config {path[:200]}: {error.strerror}; give a TOML file, or a run's record.json") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--config {path[:200]!r} is not valid {'JSON' if is_json else 'TOML'}: {error}") from None
    if is_json and isinstance(content, dict):
        content = content.get("config", content)
    if not isinstance(content, dict):
        raise UsageError(f"--config {path} has no options; give a TOML file, or a run's record.json or config.json")
    return ConfigFile(path, content, from_record=is_json)


def identifying(values: dict[str, Any], options: dict[str, Option]) -> dict[str, Any]:
    """Return what changes numbers, without options that follow another one, such as the class order the seed."""
    identifying = {}
    for name, value in values.items():
        option = options.get(name)
        follows = option and isinstance(option.default, SameAs) and value == values.get(option.default.option)
        if value is not None and not follows and (option is None or option.changes_numbers):
            identifying[name] = value
    return identifying


def words(values: dict[str, Any], options: dict[str, Option]) -> Iterator[str]:
    """Yield the words of a command that gives these values."""
    for name, value in values.items():
        option = options.get(name)
        if option is not None and option.type is flag:
            if not isinstance(value, bool):
                raise UsageError(f"{name} must be true or false (got {value!r})")
            yield from [f"--{name}"] * value
        elif option is not None and option.several and isinstance(value, list | tuple):
            yield from (f"--{name}={each}" for each in value)
        else:
            yield f"--{name}={_word(name, value)}"


def _word(name: str, value: Any) -> str:
    if isinstance(value, dict):
        raise UsageError(f"{name} is a table; write options without sections, such as lr = 0.1")
    if isinstance(value, list | tuple):
        return ",".join(_word(name, each) for each in value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def toml_line(name: str, value: Any) -> str:
    return f"{name} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", r"\u007f")
