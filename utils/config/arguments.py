"""One parser and one resolver: from the words of a command to a configuration without gaps.

Every owner declares its own options; here they meet. A value is taken from, in this order: the explicit flag;
the data set's rules; the model's, norm's and backbone's rules; the loop's rules for the scenario; the option's
own default, where a switch follows `--fidelity`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

from utils.config import loop_options
from utils.config.options import ByFidelity, Option, Rule, SameAs, default_values, flag
from utils.config.plugins import given_plugins, load_plugins
from utils.config.registry import BACKBONES, DATASETS, MODELS, NORMS, Entry, close_matches
from utils.errors import UsageError

SELECTORS = {"model": MODELS, "norm": NORMS, "dataset": DATASETS, "backbone": BACKBONES}


class Config(SimpleNamespace):
    """The resolved options of a run, as attributes."""

    def values(self) -> dict[str, Any]:
        return dict(vars(self))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """The explicit flags of a command, checked one by one. Its plug-ins are loaded first: their flags count too."""
    plugins = given_plugins(argv)
    load_plugins(plugins)
    parser = build_parser()
    explicit, unknown = parser.parse_known_args(argv)
    for word in unknown:
        if word.startswith("--"):
            name = word.split("=")[0]
            raise UsageError(
                f"unknown flag {name}{close_matches(name, list(parser._option_string_actions))} See --help"
            )
        raise UsageError(f"unexpected argument {word!r}: flags start with --, see --help")
    if hasattr(explicit, "help"):
        raise UsageError("for help give --help alone")
    if plugins:
        explicit.plugins = tuple(plugins)
    return vars(explicit)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="main.py",
        description="Continual learning with swappable normalization layers. "
        "Every flag has a default that fits the model, norm, data set and scenario; a run prints them all.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30, width=110),
    )
    chosen = parser.add_argument_group("what to run")
    chosen.add_argument("-h", "--help", action="count", help="show this and exit")
    for name, registry in SELECTORS.items():
        known = ", ".join(registry.names())
        chosen.add_argument(f"--{name}", metavar="NAME", help=f"{_one(known)}")
    chosen.add_argument("--list", nargs="*", metavar="WHAT", help="what is registered: models, norms, ..., switches")
    declared: dict[str, dict[str, Option]] = {}  # flag -> owner -> option
    flags_of: dict[str, dict[str, None]] = {}  # title -> flags, each where it came first
    for title, owner, options in _all_options():
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
    names = getattr(option.type, "names", None)
    owners = [owner for owner in by_owner if owner]
    defaults = {_shown_default(option): owner for owner, option in by_owner.items()}
    shown = "".join(f"{text} for {owner}" if len(defaults) > 1 else text for text, owner in defaults.items())
    help_ = _one(option.help + (f" [{', '.join(owners)}]" if owners else "") + shown)
    if option.type is flag:
        group.add_argument(option.flag, action="store_true", help=help_)
        return
    metavar = "{" + ",".join(names) + "}" if names else option.name.split("_")[-1].upper()
    several = {"nargs": "+", "action": "extend"} if option.several else {}
    group.add_argument(option.flag, type=option.type, metavar=metavar, help=help_, **several)


def _shown_default(option: Option) -> str:
    default = option.default
    if default is None or default is False or default == () or "default:" in option.help:
        return ""
    if isinstance(default, ByFidelity):
        return f" (official: {default.official}, paper: {default.paper})"
    return f" (default: that of --{default.option})" if isinstance(default, SameAs) else f" (default: {default})"


def _all_options() -> Iterable[tuple[str, str, tuple[Option, ...]]]:
    """(group title, owner's name or "", options) of everything there is."""
    yield "the run", "", loop_options.RUN
    yield "training", "", loop_options.TRAINING
    yield "output", "", loop_options.OUTPUT
    yield "memory buffer and replay", "", loop_options.BUFFER
    titles = {"dataset": "data sets", "model": "methods", "norm": "norms", "backbone": "backbones"}
    for selector, title in titles.items():
        for entry in SELECTORS[selector].entries().values():
            yield title, entry.name, entry.options


def resolve(explicit: dict[str, Any]) -> Config:
    """A configuration without gaps; raises UsageError where flags contradict each other."""
    config: dict[str, Any] = {}
    entries = _selected(explicit, config)
    options = _active_options(entries)
    _refuse_strangers(explicit, options, config, entries)
    _fill_defaults(config, explicit, options, entries)
    _check_together(config, explicit, entries)
    return Config(**config)


def _selected(explicit: dict[str, Any], config: dict[str, Any]) -> dict[str, Entry]:
    defaults = {"model": None, "norm": "bn", "dataset": None, "backbone": "resnet18"}
    entries = {}
    for name, registry in SELECTORS.items():
        value = explicit.get(name, defaults[name])
        if value is None:
            raise UsageError(f"--{name} is missing; choose one of {', '.join(registry.names())}")
        entries[name] = registry.get(value)
        config[name] = value
        if name == "dataset":
            defaults["backbone"] = entries[name].traits.get("backbone", defaults["backbone"])
    return entries


def _active_options(entries: dict[str, Entry]) -> dict[str, Option]:
    options = [*loop_options.RUN, *loop_options.TRAINING, *loop_options.OUTPUT]
    model = entries["model"].build
    if model.uses_buffer:
        options += loop_options.BUFFER
    options = [option for option in options if option.name not in model.unused_options]
    for entry in entries.values():
        options += entry.options
    return {option.name: option for option in options}


def _refuse_strangers(explicit: dict, options: dict[str, Option], config: dict, entries: dict[str, Entry]) -> None:
    """A flag that the chosen model, norm, data set and backbone do not use is a mistake, not decoration."""
    for name in explicit:
        if name in options or name in SELECTORS:
            continue
        if name in entries["model"].build.unused_options:
            raise UsageError(f"--{name} means nothing to --model {config['model']}: leave it out")
        if any(option.name == name for option in loop_options.BUFFER):
            raise UsageError(f"--{name} is for methods with a memory buffer; --model {config['model']} has none")
        users = [
            f"--{selector} {entry.name}"
            for selector, registry in SELECTORS.items()
            for entry in registry.entries().values()
            if any(option.name == name for option in entry.options)
        ]
        if not users:
            raise UsageError(f"there is no option {name!r}{close_matches(name, sorted(_all_names()))}")
        selector = users[0].split()[0].lstrip("-")
        raise UsageError(f"--{name} is an option of {' or '.join(users)}, not of --{selector} {config[selector]}")


def _fill_defaults(config: dict, explicit: dict, options: dict[str, Option], entries: dict[str, Entry]) -> None:
    fidelity = explicit.get("fidelity", "official")
    config |= default_values(options.values(), fidelity) | explicit
    for rule in _rules(entries):
        if not rule.applies(config):
            continue
        for name, value in rule.values.items():
            if name in options and name not in explicit:
                config[name] = value.pick(fidelity) if isinstance(value, ByFidelity) else value
    for name in list(config):
        if isinstance(config[name], SameAs):
            config[name] = config[config[name].option]


def _rules(entries: dict[str, Entry]) -> Iterable[Rule]:
    yield from loop_options.RULES
    for selector in ("backbone", "norm", "model", "dataset"):
        _check_rules(entries[selector])
        yield from entries[selector].rules


def _check_rules(entry: Entry) -> None:
    """A name that no option has would be a default that nobody ever gets."""
    known = _all_names()
    for rule in entry.rules:
        for name in rule.values:
            if name not in known:
                raise UsageError(f"a rule of {entry.name} sets {name!r}, no option{close_matches(name, sorted(known))}")
        for name in rule.when:
            if name not in {*known, *SELECTORS}:
                close = close_matches(name, sorted({*known, *SELECTORS}))
                raise UsageError(f"a rule of {entry.name} asks for {name!r}, no option{close}")


def _all_names() -> set[str]:
    return {option.name for _, _, options in _all_options() for option in options}


def _check_together(config: dict[str, Any], explicit: dict[str, Any], entries: dict[str, Entry]) -> None:
    if config["wandb_entity"] and not config["wandb_project"]:
        raise UsageError("--wandb_entity needs --wandb_project")
    if config["accept_changed_code"] and config["restart_changed_code"]:
        raise UsageError("--accept_changed_code and --restart_changed_code contradict each other: give one")
    model, backbone = entries["model"].build, entries["backbone"].build
    if model.needs_features and not backbone.n_feature_maps:
        raise UsageError(
            f"--model {config['model']} compares feature maps, which --backbone {config['backbone']} lacks"
        )
    if model.rebuilds_network and entries["norm"].traits.get("needs_past_tasks"):
        raise UsageError(
            f"--norm {config['norm']} keeps what the first tasks left in the network, and --model {config['model']} "
            "builds a new one in every task: choose another norm, such as bn"
        )
    if config.get("buffer_mode") == "reservoir":
        if "ring_quota" in explicit:
            raise UsageError("--ring_quota needs --buffer_mode ring")
        config["ring_quota"] = None  # so that a reservoir's run is the same run whatever a preset says of rings
    if config.get("replay_forward") == "auto":
        together = model.always_joint_forward or entries["norm"].traits.get("joint_replay", False)
        config["replay_forward"] = "joint" if together else "separate"


def number_options(config: Config) -> dict[str, Any]:
    """The part of a configuration that changes numbers."""
    counted = {name for name, option in _options_of(config).items() if option.changes_numbers}
    return {name: value for name, value in config.values().items() if name in counted or name in SELECTORS}


def identity_options(config: Config) -> dict[str, Any]:
    """What identifies a run: all that changes numbers, but for options at their neutral value."""
    neutral = {name: option.neutral for name, option in _options_of(config).items()}
    counted = number_options(config)
    return {name: value for name, value in counted.items() if name in SELECTORS or value != neutral[name]}


def _options_of(config: Config) -> dict[str, Option]:
    return _active_options({name: registry.get(getattr(config, name)) for name, registry in SELECTORS.items()})


def switches() -> list[tuple[str, str, Any, Any, str]]:
    """Every place where the released code and the paper differ: (owner, flag, official, paper, help)."""
    found = {}
    for title, owner, options in _all_options():
        for option in options:
            if isinstance(option.default, ByFidelity):
                found[option.name] = (owner or title, option.flag, option.default, option.help)
    rows = [(owner, name, by.official, by.paper, text) for owner, name, by, text in found.values()]
    for registry in SELECTORS.values():
        for entry in registry.entries().values():
            for rule in entry.rules:
                for name, value in rule.values.items():
                    if isinstance(value, ByFidelity):
                        where = ", ".join(f"--{key} {condition}" for key, condition in rule.when.items())
                        rows.append((entry.name, f"--{name}", value.official, value.paper, f"with {where}"))
    return rows
