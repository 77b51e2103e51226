"""`--config FILE` and `--save_config FILE`: a command's flags as a file.

It is TOML with one key a flag, such as `lr = 0.1`, or what a run leaves: its `record.json` or `config.json`. Values
become words of a command and are checked as such, and flags win. Of what a run leaves, only what identifies the run is
taken: from where it read, where it wrote and what it told is up to the command.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.config.options import Option, SameAs, flag, path
from utils.errors import UsageError
from utils.files import write_atomically


@dataclass(frozen=True)
class ConfigFile:
    path: str
    values: dict[str, Any]
    is_of_a_run: bool = False  # complete, and with options that only say how the run was carried out

    @property
    def plugins(self) -> list[str]:
        """Those that it names: their flags may be in it."""
        named = [] if self.is_of_a_run else self.values.get("plugins", [])
        named = [named] if isinstance(named, str) else named
        if not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
            raise UsageError(f"{self.path}: plugins must be folders or modules, such as ['mine']; got {named!r}")
        return named


def given_file(argv: Sequence[str]) -> ConfigFile | None:
    """That of a command's words. Read before the parser is built: it may name plug-ins."""
    path = None
    for word, following in zip(argv, [*argv[1:], "--"], strict=True):
        name, given, value = word.partition("=")
        if name == "--config" and (given or not following.startswith("-")):
            path = value if given else following
    return None if path is None else read(path)


def read(path: str) -> ConfigFile:
    try:
        text = Path(path).read_text(encoding="utf-8")
        if not path.endswith(".json"):
            return ConfigFile(path, tomllib.loads(text))
        content = json.loads(text)
    except OSError as error:
        raise UsageError(f"--config {path[:200]}: {error.strerror}; give a TOML file, or a run's JSON") from None
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.endswith(".json") else "TOML"
        raise UsageError(f"--config {path[:200]!r} cannot be read as {kind}: {error}") from None
    options = content.get("config", content) if isinstance(content, dict) else None
    if not isinstance(options, dict):
        raise UsageError(f"--config {path}: no options in it; give a run's record.json or config.json, or TOML")
    return ConfigFile(path, options, is_of_a_run=True)


def identifying(values: dict[str, Any], options: dict[str, Option]) -> dict[str, Any]:
    """Of a whole configuration: what changes numbers. What followed another option, such as the class order the seed,
    goes on following it."""
    return {
        name: value
        for name, value in values.items()
        if value is not None and not (name in options and _is_left_out(options[name], value, values))
    }


def _is_left_out(option: Option, value: Any, values: dict[str, Any]) -> bool:
    follows = isinstance(option.default, SameAs) and value == values.get(option.default.option)
    return follows or not option.changes_numbers


def words(values: dict[str, Any], options: dict[str, Option]) -> Iterator[str]:
    """As a command gives them."""
    for name, value in values.items():
        option = options.get(name)
        if option is not None and option.type is flag:
            if not isinstance(value, bool):
                raise UsageError(f"{name} must be true or false, got {value!r}")
            yield from [f"--{name}"] * value
        elif option is not None and option.several and isinstance(value, list | tuple):
            yield from (f"--{name}={one}" for one in value)
        else:
            yield f"--{name}={_word(name, value)}"


def _word(name: str, value: Any) -> str:
    if isinstance(value, dict):
        raise UsageError(f"{name} is a table: options stand alone, such as lr = 0.1")
    if isinstance(value, list | tuple):
        return ",".join(_word(name, one) for one in value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def toml_path(value: str) -> str:
    """Option type: where TOML may be written, and is read as such again."""
    if not path(value).endswith(".toml"):
        raise argparse.ArgumentTypeError(f"must be a name that ends in .toml, got {value!r}")
    return value


def write(to: str, values: dict[str, Any]) -> None:
    lines = ["# python main.py --config THIS_FILE; flags win over what is here.\n"]
    lines += [f"{name} = {_toml(value)}\n" for name, value in values.items()]
    try:
        Path(to).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(to), lambda file: file.write("".join(lines).encode()))
    except OSError as error:
        raise UsageError(f"--save_config {to}: cannot be written: {error.strerror}") from None


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", r"\u007f")
