"""One parser and one resolver: from the words of a command to a configuration without gaps.

Every owner declares its own options; here they meet. A value is taken from, in this order: the explicit flag;
the data set's rules; the model's, norm's and backbone's rules; the loop's rules for the scenario; the option's
own default, where a switch follows `--fidelity`.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from shutil import get_terminal_size
from types import SimpleNamespace
from typing import Any, NoReturn

from utils.config import loop_options
from utils.config.config_file import ConfigFile, given_file, identifying, toml_path, words
from utils.config.options import ByFidelity, Option, Rule, SameAs, default_values, flag, path
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
    options = _by_name()
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
    entries = _selected(both, config)
    before, now = _active_options(_selected(flags | explicit, {})), _active_options(entries)
    gone = [name for name in explicit if name in before and name not in now]
    if gone:
        names = ", ".join(gone)
        print(f"note: {file}: left out, since other flags replace what they belong to: {names}", file=sys.stderr)
    explicit = {name: value for name, value in explicit.items() if name not in gone}
    _refuse_strangers([name for name in explicit if name != "seeds"], now, config, entries)
    return explicit


def _identifying(values: dict[str, Any]) -> dict[str, Any]:
    kept = identifying(values, _by_name())
    entries = {name: registry.entries().get(values.get(name)) for name, registry in SELECTORS.items()}
    if all(entries.values()) and kept.get("replay_forward") == _meaning_of_auto(entries):
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
    return [*words({name: value for name, value in values.items() if value is not None}, _by_name())]


def _by_name() -> dict[str, Option]:
    """Every option there is; of owners that share a name, the first's."""
    found: dict[str, Option] = {}
    for _, _, options in _all_options():
        for option in options:
            found.setdefault(option.name, option)
    return found


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


# --- from flags to a configuration ------------------------------------------------------------------------------------


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


def _refuse_strangers(
    explicit: Iterable[str], options: dict[str, Option], config: dict, entries: dict[str, Entry]
) -> None:
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
            if name in SELECTORS:
                raise UsageError(
                    f"a rule of {entry.name} sets {name!r}, which is chosen before rules are asked; a data set names "
                    "its backbone where it is registered: backbone='mlp'"
                )
            if name not in known:
                raise UsageError(f"a rule of {entry.name} sets {name!r}, no option{close_matches(name, sorted(known))}")
        for name in rule.when:
            if name not in {*known, *SELECTORS}:
                close = close_matches(name, sorted({*known, *SELECTORS}))
                raise UsageError(f"a rule of {entry.name} asks for {name!r}, no option{close}")


def _all_names() -> set[str]:
    return set(_by_name())


def _check_together(config: dict[str, Any], explicit: dict[str, Any], entries: dict[str, Entry]) -> None:
    if config["wandb_entity"] and not config["wandb_project"]:
        raise UsageError("--wandb_entity needs --wandb_project")
    if config["accept_changed_code"] and config["restart_changed_code"]:
        raise UsageError("--accept_changed_code and --restart_changed_code contradict each other: give one")
    _check_training(config, explicit)
    if config["amp"] != "none" and config["dtype"] != "float32":
        raise UsageError(
            f"--amp {config['amp']} is float32 with some of it in half: leave --dtype {config['dtype']} out"
        )
    if config["compile"]:
        _settle_compilation(config, entries)
    _settle_tasks(config, explicit)
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
    if config.get("current_share") is not None:
        if "minibatch_size" in explicit:
            raise UsageError("--minibatch_size and --current_share both say how much is replayed: give one")
        config["minibatch_size"] = None
    if config.get("eval_statistics") == "buffer" and not model.uses_buffer:
        raise UsageError(
            f"--eval_statistics buffer is for methods with a memory buffer; --model {config['model']} has none"
        )
    if config.get("buffer_mode") == "reservoir":
        if "ring_quota" in explicit:
            raise UsageError("--ring_quota needs --buffer_mode ring")
        config["ring_quota"] = None  # so that a reservoir's run is the same run whatever a preset says of rings
    if config.get("replay_forward") == "auto":
        config["replay_forward"] = _meaning_of_auto(entries)


def _settle_compilation(config: dict[str, Any], entries: dict[str, Entry]) -> None:
    """One graph has no room for what works layer by layer."""
    if not entries["model"].build.compiles:
        able = ", ".join(name for name, entry in sorted(MODELS.entries().items()) if entry.build.compiles)
        raise UsageError(f"--compile is not for --model {config['model']}, but for {able}: leave it out")
    if config["batch_size"] == 1:
        raise UsageError("--compile needs batches of at least 2 images: leave it out, or set --batch_size")
    if config["probe"]:
        raise UsageError("--probe watches layers one by one, which --compile makes one: give one of the two")
    if config.get("norm_impl", "auto") not in ("auto", "reference"):
        raise UsageError(
            f"--compile makes kernels of the norms' plain operations: leave --norm_impl {config['norm_impl']} out"
        )
    if "norm_impl" in config:
        config["norm_impl"] = "reference"


def _check_training(config: dict[str, Any], explicit: dict[str, Any]) -> None:
    """A method may do without some of these options."""
    optimizer, momentum = config.get("optimizer", "sgd"), config.get("optim_mom")
    if optimizer != "sgd" and momentum:
        raise UsageError(f"--optim_mom is SGD's, and --optimizer {optimizer} has its own: set --optim_mom 0")
    if config.get("nesterov") and not (optimizer == "sgd" and momentum):
        raise UsageError("--nesterov needs --optimizer sgd with a momentum: set --optim_mom")
    if config.get("n_iters") is not None:
        if "n_epochs" in explicit:
            raise UsageError("--n_iters and --n_epochs contradict each other: give one")
        if config.get("lr_milestones"):
            raise UsageError("--n_iters counts steps and --lr_milestones epochs: set --lr_milestones none")
        config["n_epochs"] = None
    if config.get("stop_after") == config.get("n_tasks"):
        config["stop_after"] = None  # that is all of them


def _meaning_of_auto(entries: dict[str, Entry]) -> str:
    together = entries["model"].build.always_joint_forward or entries["norm"].traits.get("joint_replay", False)
    return "joint" if together else "separate"


def _settle_tasks(config: dict[str, Any], explicit: dict[str, Any]) -> None:
    """What a list of classes, or of their numbers, takes the place of."""
    if config.get("class_order") is not None:
        if "class_order_seed" in explicit:
            raise UsageError("--class_order and --class_order_seed contradict each other: give one")
        config["class_order_seed"] = None
    if sizes := config.get("task_classes"):
        if explicit.get("n_tasks", len(sizes)) != len(sizes):
            raise UsageError(
                f"--task_classes is {len(sizes)} tasks, not --n_tasks {explicit['n_tasks']}: leave that out"
            )
        config["n_tasks"] = len(sizes)


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
