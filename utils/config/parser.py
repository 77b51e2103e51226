"""The parser: from the words of a command, and a `--config` file, to explicit flags, checked one by one."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping, Sequence
from shutil import get_terminal_size
from typing import Any, NoReturn

from utils.config import loop_options
from utils.config.config_file import ConfigFile, identifying, read, toml_line, words
from utils.config.options import ByFidelity, Option, SameAs, flag
from utils.config.plugins import early_arguments, given_plugins, load_plugins
from utils.config.registry import close_matches
from utils.config.resolve import (
    SELECTORS,
    Config,
    active_options,
    all_options,
    new_names,
    number_options,
    options_by_name,
    reject_unused_options,
    selected_entries,
)
from utils.errors import UsageError

ALTERNATIVES = (("seed", "seeds"), ("n_epochs", "n_iters"))  # a flag replaces both in a file
# What a command does once: not part of a configuration that is used again.
ONE_TIME_FLAGS = ("rerun", "accept_changed_code", "dry_run", "eval_only")


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """Return the explicit flags of a command, and those of its `--config` file that the command does not give."""
    for word in argv:
        if "\0" in word or any("\ud800" <= letter <= "\udfff" for letter in word):
            raise UsageError(f"{word[:80]!r} is not valid text")
        if word.endswith("=--"):  # argparse would read it as an empty list
            raise UsageError(f"{word!r} has no value")
    path = early_arguments(argv).config
    file = None if path is None else read(path)
    plugins = given_plugins(argv, file.plugins if file else ())
    load_plugins(plugins)
    parser = build_parser()
    explicit = _parse_words(parser, argv)
    if "help" in explicit:
        raise UsageError("give --help as a word of its own")
    explicit.pop("config", None)
    if file:
        explicit = _from_file(file, explicit, parser) | explicit
    if "seed" in explicit and "seeds" in explicit:
        raise UsageError("--seed and --seeds contradict each other; give one")
    return explicit | ({"plugins": tuple(plugins)} if plugins else {})


def _parse_words(parser: argparse.ArgumentParser, argv: Sequence[str]) -> dict[str, Any]:
    """Parse flags under their present or old names, with underscores or dashes, as in --dry-run."""
    known = parser._option_string_actions
    renamed = new_names()
    current = []
    for word in argv:
        name, equals, value = word.partition("=")
        underscored = name[2:].replace("-", "_")
        new_name = f"--{renamed.get(underscored, underscored)}"
        if name.startswith("--") and name not in known and new_name in known:
            if underscored in renamed:
                _note(f"{name} is now {new_name}")
            word = f"{new_name}{equals}{value}"
        current.append(word)
    explicit, unknown = parser.parse_known_args(current)
    for word in unknown:
        if word.startswith("--"):
            name = word.split("=")[0]
            raise UsageError(f"unknown flag {name}{close_matches(name, list(known))} See --help")
        raise UsageError(f"unexpected argument {word!r}; flags start with --, see --help")
    return vars(explicit)


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


# --- configuration files ----------------------------------------------------------------------------------------------


def _from_file(file: ConfigFile, flags: dict[str, Any], parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the file's options, checked as flags are, without those of parts that the command's flags replace."""
    try:
        _check_parts_exist(file)
        values = _current_options(file.values, file.path)
        if file.from_record:
            values = _identifying(values)
        known = sorted({*options_by_name(), *SELECTORS, "seeds"})
        if unknown := [name for name in values if name not in known]:
            raise UsageError(f"unknown key {unknown[0]!r}{close_matches(unknown[0], known)}")
        explicit = _parse_words(parser, as_words(values))
        for pair in ALTERNATIVES:
            if flags.keys() & set(pair):
                explicit = {name: value for name, value in explicit.items() if name not in pair}
        return _without_replaced_parts(file.path, explicit, flags)
    except UsageError as error:
        raise UsageError(f"{file.path}: {error}") from None


def _check_parts_exist(file: ConfigFile) -> None:
    """Name a missing part before its options, which are unknown as well if it comes from a plug-in."""
    for name, registry in SELECTORS.items():
        try:
            if name in file.values:
                registry.get(str(file.values[name]))
        except UsageError as error:
            plugins = file.values.get("plugins") if file.from_record else None
            hint = f"; the run used --plugins {' '.join(map(str, plugins))}" if plugins else ""
            raise UsageError(f"{error}{hint}") from None


def _current_options(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Return options of a file under their present names, without options that no longer exist."""
    options, renamed = options_by_name(), new_names()
    dropped = [name for name in values if name in loop_options.DROPPED_OPTIONS and name not in options]
    if dropped:
        _note(f"{where}: ignored, since these options no longer exist: {', '.join(dropped)}")
    for name in values.keys() & renamed.keys():
        if values[name]:
            _note(f"{where}: {name} is now {renamed[name]}")
    return {renamed.get(name, name): value for name, value in values.items() if name not in dropped}


def _without_replaced_parts(path: str, explicit: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    both = explicit | flags
    if not {"model", "dataset"} <= set(both):
        return explicit  # reported later, or supplied by --eval_only
    entries = selected_entries(both)
    before, now = active_options(selected_entries(flags | explicit)), active_options(entries)
    if gone := [name for name in explicit if name in before and name not in now]:
        _note(f"{path}: ignored, since flags replace the parts that they belong to: {', '.join(gone)}")
    explicit = {name: value for name, value in explicit.items() if name not in gone}
    reject_unused_options([name for name in explicit if name != "seeds"], now, entries)
    return explicit


def _identifying(values: dict[str, Any]) -> dict[str, Any]:
    """Return what identifies a run, without a replay_forward that `auto` would resolve to."""
    values = identifying(values, options_by_name())
    model, norm = values.get("model"), values.get("norm")
    if model and norm and values.get("replay_forward") == loop_options.default_replay_forward(model, norm):
        del values["replay_forward"]
    return values


def as_words(values: dict[str, Any]) -> list[str]:
    """Return options of a file or record as the words of a command, so that they are checked as flags are."""
    values = _current_options(values, "the record")
    return [*words({name: value for name, value in values.items() if value is not None}, options_by_name())]


def as_toml(config: Config, explicit: dict[str, Any], seeds: Sequence[int] | None) -> str:
    """Return a `--config` file: what identifies the run and what else was given, and the other options as comments."""
    numbers = number_options(config)
    more = {name: value for name, value in explicit.items() if name not in numbers and name not in ONE_TIME_FLAGS}
    values = _identifying(numbers) | more
    if seeds is not None:
        values = {name: value for name, value in values.items() if name != "seed"} | {"seeds": list(seeds)}
    others = {name: v for name, v in config.values().items() if name not in {*values, *ONE_TIME_FLAGS, "seed"}}
    lines = [toml_line(name, value) for name, value in values.items()]
    lines += [f"# {toml_line(name, 'none' if value is None else value)}" for name, value in sorted(others.items())]
    return "\n".join(lines)


# --- the parser -------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class _Help(argparse.HelpFormatter):
    """As wide as the terminal, up to a width that reads well. Names with a hyphen, such as seq-digits, stay whole."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=30, width=min(110, get_terminal_size((112, 24)).columns - 2))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def help_text(argv: Sequence[str]) -> str:
    """Return the help on all flags, or on those of the parts that a command names."""
    load_plugins(given_plugins(argv))
    early = vars(early_arguments(argv))
    parts = {name: registry.get(early[name]).name for name, registry in SELECTORS.items() if early[name]}
    return build_parser(parts).format_help()


def build_parser(parts: Mapping[str, str] | None = None) -> argparse.ArgumentParser:
    """Return the parser of all flags or, for help, of the flags of these parts."""
    about = (
        f"Flags of {', '.join(parts.values())}. --help alone shows all flags."
        if parts
        else "Continual learning with swappable normalization layers. Defaults fit the model, norm, data set and "
        "scenario; --dry_run prints them. --help --model NAME --norm NAME shows the flags of these parts."
    )
    parser = _Parser(
        usage="main.py --model NAME --dataset NAME [--norm NAME] [more flags]",
        description=about,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
        formatter_class=_Help,
    )
    if not parts:
        _add_selectors(parser.add_argument_group("what to run"))
    declared: dict[str, dict[str, Option]] = {}  # flag -> owner -> option
    groups: dict[str, argparse._ArgumentGroup] = {}  # flag -> the group of its first owner
    by_title: dict[str, argparse._ArgumentGroup] = {}
    for title, owner, options in all_options(dict(parts or {})):
        for option in options:
            if owner and "" in declared.get(option.name, {}):
                raise UsageError(f"{owner} declares {option.flag}, which every run has; rename its option")
            if title not in by_title:
                by_title[title] = parser.add_argument_group(title)
            groups.setdefault(option.name, by_title[title])
            declared.setdefault(option.name, {})[owner] = option
    for name, by_owner in declared.items():
        _add_option(groups[name], by_owner)
    return parser


def _add_selectors(group: argparse._ArgumentGroup) -> None:
    group.add_argument("-h", "--help", action="count", help="Show this help, of all flags or of named parts, and exit.")
    for name, registry in SELECTORS.items():
        group.add_argument(f"--{name}", metavar="NAME", help=", ".join(registry.names()).replace("%", "%%"))
    group.add_argument(
        "--seeds",
        type=loop_options.seeds,
        metavar="SEEDS",
        help="Run these seeds one after the other, such as 0-4 or 0,1,2, and report mean and standard deviation.",
    )
    group.add_argument(
        "--config",
        metavar="FILE",
        help="Read flags from a TOML file (lr = 0.1), or what identifies a run from its record.json or config.json. "
        "Flags of the command win.",
    )
    group.add_argument("--list", nargs="*", metavar="WHAT", help="List models, norms, datasets, backbones, switches.")


def _add_option(group: argparse._ArgumentGroup, by_owner: dict[str, Option]) -> None:
    """Add a flag, which several owners may share, each with its own default."""
    option = next(iter(by_owner.values()))
    owners = [owner for owner in by_owner if owner]
    defaults = {_default_text(option): owner for owner, option in by_owner.items()}
    shown = "".join(f"{text} for {owner}" if len(defaults) > 1 else text for text, owner in defaults.items())
    help_ = (option.help + (f" [{', '.join(owners)}]" if owners else "") + shown).replace("%", "%%")
    keywords: dict[str, Any] = {"nargs": "+", "action": "extend"} if option.several else {}
    if option.type is flag:
        keywords = {"action": "store_true"}
    elif isinstance(option.type, tuple):
        keywords |= {"choices": option.type}
    else:
        keywords |= {"type": option.type, "metavar": getattr(option.type, "metavar", "TEXT")}
    group.add_argument(option.flag, help=help_, **keywords)


def _default_text(option: Option) -> str:
    default = option.default
    if default is None or default is False or default == () or "default:" in option.help:
        return ""
    if isinstance(default, ByFidelity):
        return f" (official: {default.official}, paper: {default.paper})"
    return f" (default: that of --{default.option})" if isinstance(default, SameAs) else f" (default: {default})"
