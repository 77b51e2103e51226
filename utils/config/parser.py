"""One parser: from the words of a command, and of a `--config` file, to explicit flags, checked one by one."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Container, Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, NoReturn

from utils.config import loop_options
from utils.config.arguments import (
    SELECTORS,
    Config,
    active_options,
    all_options,
    meaning_of_auto,
    number_options,
    options_by_name,
    refuse_strangers,
    selected_entries,
)
from utils.config.config_file import ConfigFile, given_file, identifying, toml_path, words
from utils.config.options import ByFidelity, Option, SameAs, flag, path
from utils.config.plugins import given_plugins, load_plugins
from utils.config.registry import close_matches
from utils.errors import UsageError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class _Help(argparse.HelpFormatter):
    """As wide as the terminal, up to a width that reads well. Names with a hyphen, such as seq-digits, stay whole."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=30, width=min(110, get_terminal_size((112, 24)).columns - 2))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def _program() -> str:
    """As it was called: installed, or as a file."""
    name = Path(sys.argv[0]).name
    return name if name == "adab2n" else "main.py"


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """The explicit flags of a command, checked one by one, and those of its `--config` file that they leave. Plug-ins
    are loaded first: their flags count too."""
    file = given_file(argv)
    plugins = given_plugins(argv, file.plugins if file else ())
    load_plugins(plugins)
    parser = build_parser()
    explicit = _parsed(parser, argv)
    if "help" in explicit:
        raise UsageError("for help give --help alone")
    explicit.pop("config", None)
    if file:
        explicit = _from_file(file, explicit, parser) | explicit
    if "seed" in explicit and "seeds" in explicit:
        raise UsageError("--seed and --seeds contradict each other: give one")
    return explicit | ({"plugins": tuple(plugins)} if plugins else {})


def _parsed(parser: argparse.ArgumentParser, argv: Sequence[str]) -> dict[str, Any]:
    """With dashes for underscores too, as in --dry-run."""
    known = parser._option_string_actions
    explicit, unknown = parser.parse_known_args([_underscored(word, known) for word in argv])
    for word in unknown:
        if word.startswith("--"):
            name = word.split("=")[0]
            raise UsageError(f"unknown flag {name}{close_matches(name, list(known))} See --help")
        raise UsageError(f"unexpected argument {word!r}: flags start with --, see --help")
    return vars(explicit)


def _underscored(word: str, known: Container[str]) -> str:
    name, given, value = word.partition("=")
    other = f"--{name[2:].replace('-', '_')}"
    return f"{other}{given}{value}" if name.startswith("--") and name not in known and other in known else word


# --- configuration files ----------------------------------------------------------------------------------------------

ALTERNATIVES = (("seed", "seeds"), ("n_epochs", "n_iters"))  # of which a command has one
# What a command does once: no part of a configuration that is to be used again.
ACTS = ("rerun", "accept_changed_code", "restart_changed_code", "dry_run", "eval_only")


def _from_file(file: ConfigFile, flags: dict[str, Any], parser: argparse.ArgumentParser) -> dict[str, Any]:
    """What the file says, checked as flags are. What it says of a model, norm, data set or backbone that the flags
    replace goes with that."""
    options = options_by_name()
    try:
        _refuse_unknown_parts(file)
        values = _identifying(file.values) if file.is_of_a_run else file.values
        known = {*options, *SELECTORS, "seeds"}
        for name in values:
            if name not in known:
                raise UsageError(f"unknown key {name!r}{close_matches(name, sorted(known))}")
        explicit = _parsed(parser, as_words(values))
        for one, other in (*ALTERNATIVES, *(pair[::-1] for pair in ALTERNATIVES)):
            if one in flags:
                explicit.pop(other, None)
        return _fitting(file.path, explicit, flags)
    except UsageError as error:
        raise UsageError(f"{file.path}: {error}") from None


def _refuse_unknown_parts(file: ConfigFile) -> None:
    """Before its other options: those of a plug-in that is not there would be unknown as well."""
    for name, registry in SELECTORS.items():
        if name in file.values and file.values[name] not in registry.names():
            made_with = file.values.get("plugins") if file.is_of_a_run else None
            hint = f"; the run had --plugins {' '.join(map(str, made_with))}" if made_with else ""
            try:
                registry.get(str(file.values[name]))
            except UsageError as error:
                raise UsageError(f"{error}{hint}") from None


def _fitting(file: str, explicit: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    both = explicit | flags
    if not {"model", "dataset"} <= set(both):
        return explicit  # which is told, or is in a network that is evaluated
    config: dict[str, Any] = {}
    entries = selected_entries(both, config)
    before, now = active_options(selected_entries(flags | explicit, {})), active_options(entries)
    gone = [name for name in explicit if name in before and name not in now]
    if gone:
        names = ", ".join(gone)
        print(f"note: {file}: left out, since other flags replace what they belong to: {names}", file=sys.stderr)
    explicit = {name: value for name, value in explicit.items() if name not in gone}
    refuse_strangers([name for name in explicit if name != "seeds"], now, config, entries)
    return explicit


def _identifying(values: dict[str, Any]) -> dict[str, Any]:
    kept = identifying(values, options_by_name())
    entries = {name: registry.entries().get(values.get(name)) for name, registry in SELECTORS.items()}
    if all(entries.values()) and kept.get("replay_forward") == meaning_of_auto(entries):
        del kept["replay_forward"]
    return kept


def to_save(config: Config, explicit: dict[str, Any], seeds: Sequence[int] | None) -> dict[str, Any]:
    """What `--save_config` writes: all that identifies the run, and what else was given."""
    numbers = number_options(config)
    more = {name: value for name, value in explicit.items() if name not in numbers and name not in ACTS}
    values = _identifying(numbers) | more
    return values if seeds is None else {name: v for name, v in values.items() if name != "seed"} | {"seeds": seeds}


def as_words(values: dict[str, Any]) -> list[str]:
    """Options of a file as a command gives them: so they are checked as a command's are."""
    return [*words({name: value for name, value in values.items() if value is not None}, options_by_name())]


# --- the parser -------------------------------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        usage=f"{_program()} --model NAME --dataset NAME [--norm NAME] [more flags]",
        description="Continual learning with swappable normalization layers. Every flag has a default that fits the "
        "model, norm, data set and scenario; --dry_run prints them all for a command.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
        formatter_class=_Help,
    )
    chosen = parser.add_argument_group("what to run")
    chosen.add_argument("-h", "--help", action="count", help="show this and exit")
    for name, registry in SELECTORS.items():
        known = ", ".join(registry.names())
        chosen.add_argument(f"--{name}", metavar="NAME", help=f"{_one(known)}")
    chosen.add_argument(
        "--seeds",
        type=loop_options.seeds,
        metavar="SEEDS",
        help="such as 0-4 or 0,1,2: the runs of these seeds one after the other, and mean and deviation at the end",
    )
    chosen.add_argument(
        "--config",
        type=path,
        metavar="FILE",
        help="take flags from a TOML file (lr = 0.1), or those that identify a run from its record.json or "
        "config.json; flags on the command line win",
    )
    chosen.add_argument(
        "--save_config", type=toml_path, metavar="FILE", help="write the resolved configuration as TOML, for --config"
    )
    chosen.add_argument("--list", nargs="*", metavar="WHAT", help="what is registered: models, norms, ..., switches")
    declared: dict[str, dict[str, Option]] = {}  # flag -> owner -> option
    flags_of: dict[str, dict[str, None]] = {}  # title -> flags, each where it came first
    for title, owner, options in all_options():
        for option in options:
            if owner and "" in declared.get(option.name, {}):
                raise UsageError(f"{owner} declares {option.flag}, which every run has: give its option another name")
            if option.name not in declared:
                flags_of.setdefault(title, {})[option.name] = None
            declared.setdefault(option.name, {})[owner] = option
    for title, flags in flags_of.items():
        group = parser.add_argument_group(title)
        for name in flags:
            _add(group, declared[name])
    return parser


def _one(text: str) -> str:
    return text.replace("%", "%%")


def _add(group, by_owner: dict[str, Option]) -> None:
    """One flag, which several owners may share, each with its own default."""
    option = next(iter(by_owner.values()))
    owners = [owner for owner in by_owner if owner]
    defaults = {_shown_default(option): owner for owner, option in by_owner.items()}
    shown = "".join(f"{text} for {owner}" if len(defaults) > 1 else text for text, owner in defaults.items())
    help_ = _one(option.help + (f" [{', '.join(owners)}]" if owners else "") + shown)
    if option.type is flag:
        group.add_argument(option.flag, action="store_true", help=help_)
        return
    metavar = getattr(option.type, "metavar", "VALUE")
    several = {"nargs": "+", "action": "extend"} if option.several else {}
    group.add_argument(option.flag, type=option.type, metavar=metavar, help=help_, **several)


def _shown_default(option: Option) -> str:
    default = option.default
    if default is None or default is False or default == () or "default:" in option.help:
        return ""
    if isinstance(default, ByFidelity):
        return f" (official: {default.official}, paper: {default.paper})"
    return f" (default: that of --{default.option})" if isinstance(default, SameAs) else f" (default: {default})"
