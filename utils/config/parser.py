"""The parser: from the words of a command, and a `--config` file, to explicit flags, checked one by one.

A file is TOML with one key per flag, such as `lr = 0.1`, as `--dry_run` prints it, or the `record.json` or
`config.json` of a run, of which only what identifies the run is used. Its values are checked as words of a command.
"""

import argparse
import json
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from utils.cli import Parser
from utils.config import loop_options, resolve
from utils.config.mammoth import ADVICE
from utils.config.options import ByFidelity, Option, SameAs, content_file, flag
from utils.config.plugins import early_arguments, given_plugins, load_plugins
from utils.config.registry import DATASETS, REGISTRIES, Entry, close_matches
from utils.config.resolve import SELECTORS, Config, all_options, chosen_entries, new_names, options_by_name
from utils.console import log
from utils.errors import UsageError
from utils.tables import aligned

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
    early = vars(early_arguments(argv))
    path = early["config"]
    values, from_record = ({}, False) if path is None else _read(path)
    more = values.pop("plugins", [])
    if not isinstance(more, list):
        raise UsageError(f"{path}: plugins must be folders or modules, such as ['mine'] (got {more!r})")
    plugins = given_plugins(argv, [] if from_record else map(str, more))
    load_plugins(plugins)
    missing = [str(name) for name in more if from_record and str(name) not in plugins]
    hint = f"; the run was given --plugins {' '.join(missing)}" if missing else ""
    chosen_entries(early)  # an unknown name is reported as one of the command, not of the file
    try:
        entries = chosen_entries(values | {name: part for name, part in early.items() if part is not None})
        in_file = chosen_entries(early | values)
    except UsageError as error:
        raise UsageError(f"{path}: {error}{hint}") from None
    explicit = _parse_words(build_parser(entries), argv)
    explicit.pop("config", None)
    if path is not None:
        try:
            explicit = _file_options(values, from_record, in_file, explicit) | explicit
        except UsageError as error:
            raise UsageError(f"{path}: {error}{hint}") from None
    if "seed" in explicit and "seeds" in explicit:
        raise UsageError("--seed and --seeds contradict each other; give one")
    return explicit | ({"plugins": tuple(plugins)} if plugins else {})


def _parse_words(parser: Parser, argv: Iterable[str]) -> dict[str, Any]:
    """Parse flags under their present or old names, with underscores or dashes, as in --dry-run."""
    renamed = new_names()
    words = []
    for word in argv:
        if word.startswith("--"):
            flag_name, equals, value = word.partition("=")
            name = flag_name[2:].replace("-", "_")
            if name in renamed:
                log.info(f"{flag_name} is now --{renamed[name]}")
            word = f"--{renamed.get(name, name)}{equals}{value}"
        words.append(word)
    explicit, unknown = parser.parse_known_args(words)
    flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    if of_mammoth := [name for name in flags if name.lstrip("-") in ADVICE]:
        raise UsageError("; ".join(f"{name} is a flag of mammoth: {ADVICE[name.lstrip('-')]}" for name in of_mammoth))
    for word in unknown:
        if word.startswith("--"):
            name = word.partition("=")[0]
            raise UsageError(f"unknown flag {name}{close_matches(name, parser._option_string_actions)} See --help")
        actions = [parser._option_string_actions.get(before) for before, after in pairwise(words) if after == word]
        if without_value := [action.option_strings[-1] for action in actions if action and action.nargs == 0]:
            raise UsageError(f"{without_value[0]} takes no value (got {word!r}); give it alone, or leave it out")
        raise UsageError(f"unexpected argument {word!r}; flags start with --, lists have commas, see --help")
    return vars(explicit)


# --- configuration files ----------------------------------------------------------------------------------------------


def _read(path: str) -> tuple[dict[str, Any], bool]:
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


def _as_words(values: dict[str, Any], options: dict[str, Option]) -> Iterator[str]:
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


def _toml_line(name: str, value: Any) -> str:
    """Return a line of a file. What JSON and TOML write differently is not among the values of options."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f"{name} = {text}".replace("\x7f", r"\u007f")


def _file_options(
    values: dict[str, Any], from_record: bool, entries: dict[str, Entry], flags: dict[str, Any]
) -> dict[str, Any]:
    """Return the options of a file, checked as flags are, without those of parts that the command's flags replace.

    `entries` are the parts that the file is about.
    """
    if dropped := [name for name in values if name in loop_options.DROPPED_OPTIONS]:
        log.info(f"ignored, since these options no longer exist: {', '.join(dropped)}")
    renamed = new_names()
    for name in [name for name in renamed if values.get(name)]:
        log.info(f"{name} is now {renamed[name]}")
    values = {renamed.get(name, name): value for name, value in values.items() if name not in dropped}
    if from_record:
        values = _identifying(values)
    options = options_by_name(entries)
    for name in [name for name in values if name in flags and name in options and options[name].type is content_file]:
        del values[name]  # it may be of another machine
    explicit = _parse_words(build_parser(entries), _as_words(values, options))
    for pair in ALTERNATIVES:
        if flags.keys() & set(pair):
            explicit = {name: value for name, value in explicit.items() if name not in pair}
    if not {"model", "dataset"} <= {*explicit, *flags}:
        return explicit  # reported later, or supplied by --eval_only
    entries = resolve.selected_entries(explicit | flags)
    before, now = map(resolve.flags_by_owner, (resolve.selected_entries(flags | explicit), entries))
    new_flags = {flag: now.get(owner) for owner, flag in before.items()}
    if replaced := [name for name in explicit if name in new_flags and not new_flags[name]]:
        log.info(f"ignored, since flags replace the parts that they belong to: {', '.join(replaced)}")
    used = {new_flags.get(name) or name: values[name] for name in explicit if name not in replaced}
    resolve.reject_unused_options([name for name in used if name != "seeds"], resolve.active_options(entries), entries)
    return _parse_words(build_parser(entries), _as_words(used, options_by_name(entries)))


def _identifying(values: dict[str, Any]) -> dict[str, Any]:
    """Return what changes numbers, without values that follow from others, such as the class order from the seed."""
    options, identifying = options_by_name(chosen_entries(values)), {}
    for name, value in values.items():
        option = options.get(name)
        follows = option and isinstance(option.default, SameAs) and value == values.get(option.default.option)
        if value is not None and not follows and (option is None or option.changes_numbers):
            identifying[name] = value
    model, norm = values.get("model"), values.get("norm")
    if model and norm and values.get("replay_forward") == loop_options.default_replay_forward(model, norm):
        del identifying["replay_forward"]
    return identifying


def as_toml(config: Config, explicit: dict[str, Any], seeds: Sequence[int] | None) -> str:
    """Return a `--config` file: what identifies the run and what else was given, and the other options as comments."""
    numbers = resolve.number_options(config)
    more = {name: value for name, value in explicit.items() if name not in numbers and name not in ONE_TIME_FLAGS}
    values = _identifying(numbers) | more
    if seeds is not None:
        del values["seed"]
        values["seeds"] = list(seeds)
    others = {name: v for name, v in vars(config).items() if name not in {*values, *ONE_TIME_FLAGS, "seed"}}
    comments = [f"# {_toml_line(name, 'none' if v is None else v)}" for name, v in sorted(others.items())]
    return "\n".join([*(_toml_line(name, value) for name, value in values.items()), *comments])


# --- the parser -------------------------------------------------------------------------------------------------------


def help_text(argv: Sequence[str]) -> str:
    """Return the help on all flags, on those of named parts or, if a model is named, on all that such a run uses."""
    load_plugins(given_plugins(argv))
    early = {name: value for name, value in vars(early_arguments(argv)).items() if value is not None}
    parts = {name: registry.get(early[name]) for name, registry in SELECTORS.items() if name in early}
    if "model" not in parts:
        return build_parser(parts, only=bool(parts)).format_help()
    entries = chosen_entries(early)
    parser = build_parser(entries, only=True, defaults=_default_texts(entries, early.get("scenario", "online")))
    command = " ".join(f"--{name} {entry.name}" for name, entry in entries.items() if name in SELECTORS)
    more = "" if "dataset" in entries else " Add --dataset NAME for its flags and defaults."
    parser.description = f"All flags of a run with {command}, and their defaults.{more}"
    return parser.format_help()


def _default_texts(entries: dict[str, Entry], scenario: str) -> dict[str, str]:
    """Return the default of every option of a run as help shows it, empty if there is none."""
    options = resolve.active_options(entries)
    official, paper = (
        resolve.with_defaults({"scenario": scenario, "fidelity": fidelity}, options, entries)
        for fidelity in ("official", "paper")
    )
    depends: set[str] = set()
    if "dataset" not in entries:
        depends = {name for entry in DATASETS.entries().values() for rule in entry.rules for name in rule.values}
    texts = {}
    for name, option in options.items():
        ours, theirs = (",".join(map(str, v)) if isinstance(v, tuple) else v for v in (official[name], paper[name]))
        if option.name in depends:
            texts[name] = "default: that of --dataset"
        elif ours is None or ours is False or ours == "" or "default:" in option.help:
            texts[name] = ""
        else:
            differs = ours != theirs and name != "fidelity"
            texts[name] = f"default: {ours}" + (f"; with --fidelity paper: {theirs}" if differs else "")
    return texts


def listing(sections: Sequence[str]) -> str:
    """Return the names and help lines of `--list [models|norms|...|switches]`."""
    tables = {
        f"{registry.kind}s": [[entry.name, entry.help] for _, entry in sorted(registry.entries().items())]
        for registry in REGISTRIES
    }
    tables["switches"] = [["flag", "official", "paper", "of", "meaning"], *switches()]
    if unknown := [section for section in sections if section not in tables]:
        raise UsageError(f"--list {unknown[0]}: no such section; choose from {', '.join(tables)}")
    return "\n\n".join(f"{name}\n{textwrap.indent(aligned(tables[name], 'left'), '  ')}" for name in sections or tables)


def switches() -> list[list[str]]:
    """Return a row for every place where the released code and the paper differ: flag, values, owner, meaning."""
    defaults = {option.name: (owner or title, option.default, option.help) for title, owner, option in all_options()}
    switched = [(name, *values) for name, values in defaults.items()]
    for entry in (entry for registry in SELECTORS.values() for entry in registry.entries().values()):
        for rule in entry.rules:
            wanted = {name: values if isinstance(values, tuple) else (values,) for name, values in rule.when.items()}
            where = "with " + ", ".join(f"--{name} {' or '.join(map(str, values))}" for name, values in wanted.items())
            switched += [(name, entry.name, value, where) for name, value in rule.values.items()]
    return [
        [f"--{name}", str(value.official), str(value.paper), owner, text]
        for name, owner, value, text in switched
        if isinstance(value, ByFidelity)
    ]


def build_parser(
    entries: Mapping[str, Entry] | None = None, *, only: bool = False, defaults: Mapping[str, str] | None = None
) -> Parser:
    """Return the parser of all flags; a flag that several parts share is that of the chosen part, in `entries`.

    For help, `only` leaves out the flags of all other parts, and `defaults` are the texts on defaults by flag.
    """
    defaults = defaults or {}
    parser = Parser(
        usage="%(prog)s --model NAME --dataset NAME [--norm NAME] [more flags]",
        description="Continual learning with swappable normalization layers. Defaults fit the model, norm, data set\n"
        "and scenario. --help --model NAME --norm NAME --dataset NAME shows the flags and defaults of that run.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
    )
    if not only:
        _add_selectors(parser.add_argument_group("what to run"))
    chosen = resolve.part_options(entries or {})
    two_parts = {option.name for name, option in chosen.items() if name != option.name}
    title_of: dict[str, str] = {}
    owners: dict[str, dict[str, Option]] = {}  # of each flag
    for title, owner, option in all_options({name: e.name for name, e in (entries or {}).items()} if only else None):
        title_of.setdefault(option.name, title)
        owners.setdefault(option.name, {})[owner] = option
    titles = list(dict.fromkeys(title_of.values()))
    if only:  # what the parts own comes first
        titles.sort(key=lambda title: title in loop_options.GROUPS)
    groups = {title: parser.add_argument_group(title) for title in titles}
    for name, by_owner in owners.items():
        if name not in two_parts or name in chosen:
            _add_option(groups[title_of[name]], name, chosen.get(name), by_owner, defaults.get(name))
        elif not only:  # `reject_unused_options` says which flags there are instead
            groups[title_of[name]].add_argument(f"--{name}", nargs="?", help=argparse.SUPPRESS)
    for name, option in chosen.items():
        if name != option.name:
            _add_option(groups[title_of[option.name]], name, option, {}, defaults.get(name))
    return parser


def _add_selectors(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-h", "--help", action="count", help="Show this help, of all flags or of named parts, and exit.")
    for name, registry in SELECTORS.items():
        add(f"--{name}", metavar="NAME", help=", ".join(registry.names()).replace("%", "%%"))
    add("--seeds", type=loop_options.seeds, help="Run these seeds one after the other, such as 0-4 or 0,1,2.")
    add("--config", metavar="FILE", help="Read flags from a TOML file (lr = 0.1), or from a run's record.json.")
    kinds = ", ".join(f"{registry.kind}s" for registry in REGISTRIES)
    add("--list", nargs="*", metavar="WHAT", help=f"List {kinds} or switches; without a word, all of them.")


def _add_option(
    group: argparse._ArgumentGroup,
    name: str,
    chosen: Option | None,
    by_owner: dict[str, Option],
    default_text: str | None = None,
) -> None:
    """Add a flag. Owners may share it; their own defaults are shown by the help on these parts."""
    option = chosen or next(iter(by_owner.values()))
    owners = ", ".join(filter(None, by_owner))
    text = option.help + (f" [{owners}]" if owners else "")
    default = option.default
    if len({option.default for option in by_owner.values()}) > 1 or "default:" in text:
        default = None
    if default_text is not None:
        text += f" ({default_text})" if default_text else ""
    elif isinstance(default, ByFidelity):
        text += f" (official: {default.official}, paper: {default.paper})"
    elif default is not None and default is not False and default != ():
        text += f" (default: {f'that of --{default.option}' if isinstance(default, SameAs) else default})"
    keywords: dict[str, Any] = {"nargs": "+", "action": "extend"} if name == "plugins" else {}
    if option.type is flag:
        keywords = {"action": "store_true"}
    elif isinstance(option.type, tuple):
        keywords |= {"choices": option.type}
    else:
        keywords |= {"type": option.type, "metavar": "VALUE"}
    group.add_argument(f"--{name}", help=text.replace("%", "%%"), **keywords)
