"""One resolver: from the flags of a command to a configuration without gaps.

Every owner declares its own options; here they meet. A value is taken from, in this order: the explicit flag;
the data set's rules; the model's, norm's and backbone's rules; the loop's rules for the scenario; the option's
own default, where a switch follows `--fidelity`.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from utils.config import loop_options
from utils.config.options import ByFidelity, Option, Rule, SameAs, default_values
from utils.config.registry import BACKBONES, DATASETS, MODELS, NORMS, Entry, close_matches
from utils.errors import UsageError

SELECTORS = {"model": MODELS, "norm": NORMS, "dataset": DATASETS, "backbone": BACKBONES}


class Config(SimpleNamespace):
    """The resolved options of a run, as attributes."""

    def values(self) -> dict[str, Any]:
        return dict(vars(self))


def all_options() -> Iterable[tuple[str, str, tuple[Option, ...]]]:
    """(group title, owner's name or "", options) of everything there is."""
    yield "the run", "", loop_options.RUN
    yield "training", "", loop_options.TRAINING
    yield "output", "", loop_options.OUTPUT
    yield "memory buffer and replay", "", loop_options.BUFFER
    titles = {"dataset": "data sets", "model": "methods", "norm": "norms", "backbone": "backbones"}
    for selector, title in titles.items():
        for entry in SELECTORS[selector].entries().values():
            yield title, entry.name, entry.options


def options_by_name() -> dict[str, Option]:
    """Every option there is; of owners that share a name, the first's."""
    found: dict[str, Option] = {}
    for _, _, options in all_options():
        for option in options:
            found.setdefault(option.name, option)
    return found


def resolve(explicit: dict[str, Any]) -> Config:
    """A configuration without gaps; raises UsageError where flags contradict each other."""
    config: dict[str, Any] = {}
    entries = selected_entries(explicit, config)
    options = active_options(entries)
    refuse_strangers(explicit, options, config, entries)
    _fill_defaults(config, explicit, options, entries)
    _check_together(config, explicit, entries)
    return Config(**config)


def selected_entries(explicit: dict[str, Any], config: dict[str, Any]) -> dict[str, Entry]:
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


def active_options(entries: dict[str, Entry]) -> dict[str, Option]:
    options = [*loop_options.RUN, *loop_options.TRAINING, *loop_options.OUTPUT]
    model = entries["model"].build
    if model.uses_buffer:
        options += loop_options.BUFFER
    options = [option for option in options if option.name not in model.unused_options]
    for entry in entries.values():
        options += entry.options
    return {option.name: option for option in options}


def refuse_strangers(
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
    return set(options_by_name())


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
        config["replay_forward"] = meaning_of_auto(entries)


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


def meaning_of_auto(entries: dict[str, Entry]) -> str:
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
    return active_options({name: registry.get(getattr(config, name)) for name, registry in SELECTORS.items()})


def switches() -> list[tuple[str, str, Any, Any, str]]:
    """Every place where the released code and the paper differ: (owner, flag, official, paper, help)."""
    found = {}
    for title, owner, options in all_options():
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
