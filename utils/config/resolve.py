"""Resolve the flags of a command to a complete configuration.

A value is taken from, in this order: the explicit flag; the rules of the data set, model, norm, backbone and buffer;
the loop's rules for the scenario; the option's own default, where a switch follows `--fidelity`.

An option belongs to its part. Where two chosen parts have different options of one name, such as `gamma`, their flags
are `--model_gamma` and `--norm_gamma`, and each part sees its own value as `gamma`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from utils.config import loop_options
from utils.config.options import Option, Rule, SameAs, by_fidelity, content_file, file_digest
from utils.config.registry import BACKBONES, BUFFERS, DATASETS, MODELS, NORMS, OBSERVERS, Entry, close_matches
from utils.errors import UsageError

# Flags that choose a part. `--probe` chooses several: each is the part `probe_NAME`.
SELECTORS = {"model": MODELS, "norm": NORMS, "dataset": DATASETS, "backbone": BACKBONES, "buffer_mode": BUFFERS}


class Config(SimpleNamespace):
    """The resolved options of a run, as attributes."""

    def values(self) -> dict[str, Any]:
        return dict(vars(self))

    def options_of(self, part: str) -> dict[str, Any]:
        """Return the values of the options of a part, such as the norm, by their own names."""
        return option_values(part, vars(self))

    @property
    def probe_options(self) -> dict[str, dict[str, Any]]:
        """The options of every observer of `--probe`."""
        return {name: self.options_of(f"probe_{name}") for name in self.probe}

    def seen_by(self, part: str) -> Config:
        """Return the configuration in which the options of a part have their own names."""
        return Config(**vars(self) | self.options_of(part))


def all_options(parts: Mapping[str, str] | None = None) -> Iterator[tuple[str, str, Option]]:
    """Yield (group title, owner's name or "", option) of everything, or of the named parts only.

    With a model, these are also the loop's options that the model uses.
    """
    model = MODELS.get(parts["model"]).build if parts and "model" in parts else None
    for title, options in loop_options.GROUPS.items() if model or not parts else ():
        if model is None or model.uses_buffer or options is not loop_options.BUFFER:
            yield from ((title, "", o) for o in options if model is None or o.name not in model.unused_options)
    for selector, registry in SELECTORS.items():
        for entry in registry.entries().values():
            if not parts or parts.get(selector) == entry.name:
                yield from ((f"options of {registry.kind}s", entry.name, option) for option in entry.options)
    for entry in OBSERVERS.entries().values():
        if not parts or f"probe_{entry.name}" in parts:
            yield from (("options of observers", entry.name, option) for option in entry.options)


def options_by_name(entries: Mapping[str, Entry] | None = None) -> dict[str, Option]:
    """Return every option by its flag; of owners that share a name, that of the chosen part, or the first one's."""
    return {option.name: option for _, _, option in reversed([*all_options()])} | part_options(entries or {})


def new_names() -> dict[str, str]:
    """Return the present names of renamed options by their old ones."""
    return {option.old_name: option.name for _, _, option in all_options() if option.old_name}


def resolve(explicit: dict[str, Any]) -> Config:
    """Return the complete configuration; raise UsageError where flags contradict each other."""
    names = new_names()
    explicit = {names.get(name, name): value for name, value in explicit.items()}
    entries = selected_entries(explicit)
    options = active_options(entries)
    reject_unused_options(explicit, options, entries)
    config = with_defaults(explicit, options, entries)
    model, norm, backbone = entries["model"], entries["norm"], entries["backbone"]
    if model.build.needs_features and not backbone.build.n_feature_maps:
        raise UsageError(f"--model {model.name} compares feature maps, which --backbone {backbone.name} lacks")
    if model.build.rebuilds_network and norm.traits.get("needs_past_tasks"):
        raise UsageError(f"--norm {norm.name} needs one network for all tasks; --model {model.name} has several")
    loop_options.check_training(config, explicit)
    loop_options.check_boundary(config, explicit)
    for selector, entry in entries.items():
        flags = own_flags(selector, entry, options)
        for check in (option.check for option in entry.options if option.check):
            seen = config | {name: config[flag] for name, flag in flags.items()}
            check(seen, explicit | {name: explicit[flag] for name, flag in flags.items() if flag in explicit})
            config |= {flags.get(name, name): value for name, value in seen.items()}
    return Config(**config)


def selected_entries(explicit: Mapping[str, Any]) -> dict[str, Entry]:
    """Return the chosen parts: model, norm, data set, backbone, buffer and observers."""
    for name in ("model", "dataset"):
        if name not in explicit:
            raise UsageError(f"--{name} is missing; choose one of {', '.join(SELECTORS[name].names())}")
    return chosen_entries(explicit)


def chosen_entries(explicit: Mapping[str, Any]) -> dict[str, Entry]:
    """Return the chosen parts as far as flags, or their defaults, say."""
    names = {"norm": "bn"} | {name: str(explicit[name]) for name in SELECTORS if explicit.get(name) is not None}
    entries: dict[str, Entry] = {}
    for name, registry in SELECTORS.items():
        if name == "backbone" and "dataset" in entries:
            names.setdefault("backbone", entries["dataset"].traits.get("backbone", "resnet18"))
        if name == "buffer_mode" and "model" in entries:
            model = entries["model"].build
            if not model.uses_buffer or "buffer_mode" in model.unused_options:
                continue  # `reject_unused_options` reports the flag
            names.setdefault("buffer_mode", "reservoir")
        if name in names:
            entries[name] = registry.get(names[name])
    probes = explicit.get("probe") or ()
    probes = probes.split(",") if isinstance(probes, str) else probes
    # A name that is not known is rejected where the flag is read; records may have those of plug-ins.
    known = OBSERVERS.entries() if probes else {}
    return entries | {f"probe_{name}": known[name] for name in probes if name in known}


def active_options(entries: dict[str, Entry]) -> dict[str, Option]:
    """Return the options that the chosen parts use."""
    model = entries["model"].build
    options = [*loop_options.RUN, *loop_options.TRAINING, *loop_options.OUTPUT]
    options += loop_options.BUFFER if model.uses_buffer else ()
    flags = {option.name: option for option in options if option.name not in model.unused_options}
    return flags | part_options(entries)


def part_options(entries: Mapping[str, Entry]) -> dict[str, Option]:
    """Return the options of these parts by their flags: `gamma`, or `norm_gamma` where another part has one, too."""
    owners: dict[str, dict[str, Option]] = {}
    for selector, entry in entries.items():
        for option in entry.options:
            owners.setdefault(option.name, {})[selector] = option
    flags: dict[str, Option] = {}
    for name, by_selector in owners.items():
        # Observers count only among themselves: none renames an option of the run's identity.
        options = [by_selector[part] for part in by_selector if part in SELECTORS] or [*by_selector.values()]
        if all(option is options[0] for option in options):
            flags[name] = options[0]
        for selector, option in by_selector.items():
            if flags.get(name) is option:
                continue
            if (flag := f"{selector}_{name}") in owners:
                raise UsageError(f"--{flag} would be two options of {entries[selector].name}; rename one")
            flags[flag] = option
    return flags


def own_flags(selector: str, entry: Entry, options: Mapping[str, Option]) -> dict[str, str]:
    """Return the flags of a part's options by their names."""
    return {o.name: o.name if options.get(o.name) is o else f"{selector}_{o.name}" for o in entry.options}


def option_values(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a part's options by their own names, as far as they are there."""
    entries = selected_entries(values)
    flags = own_flags(part, entries[part], active_options(entries))
    return {name: values[flag] for name, flag in flags.items() if flag in values}


def flags_by_owner(entries: dict[str, Entry]) -> dict[tuple[str, str], str]:
    """Return the flags of a run by (part, option); ("", flag) are those of the loop and those that choose parts."""
    options = active_options(entries)
    owned = {
        (selector, name): flag
        for selector, entry in entries.items()
        for name, flag in own_flags(selector, entry, options).items()
    }
    return {("", name): name for name in (*options, *entries) if name not in owned.values()} | owned


def reject_unused_options(explicit: Iterable[str], options: dict[str, Option], entries: dict[str, Entry]) -> None:
    """Raise UsageError for a flag that the chosen parts do not use."""
    for name in explicit:
        if name in options or name in entries:
            continue
        owners = [owner for _, owner, option in all_options() if option.name == name]
        if not owners and name not in SELECTORS:
            raise UsageError(f"unknown option {name!r}{close_matches(name, options_by_name())}")
        if flags := [f"--{flag}" for flag, option in options.items() if option.name == name]:
            raise UsageError(f"--{name} is an option of two parts of this run; give {' or '.join(flags)}")
        if "" in owners or name in SELECTORS:
            raise UsageError(f"--{name} has no effect with --model {entries['model'].name}; remove it")
        raise UsageError(f"--{name} is an option of {' or '.join(owners)}; choose that, or remove --{name}")


def with_defaults(explicit: dict[str, Any], options: dict[str, Option], entries: dict[str, Entry]) -> dict[str, Any]:
    """Return the explicit values and the defaults of all other options, before checks between options."""
    fidelity = explicit.get("fidelity", "official")
    config: dict[str, Any] = {name: entry.name for name, entry in entries.items() if name in SELECTORS}
    config |= {name: by_fidelity(option.default, fidelity) for name, option in options.items()} | explicit
    known = options_by_name()
    owned_rules: list[tuple[str, dict[str, str], Rule]] = [("the loop", {}, rule) for rule in loop_options.RULES]
    for selector in ("buffer_mode", "backbone", "norm", "model", "dataset"):
        if (entry := entries.get(selector)) is None:  # in the help on a model alone
            continue
        owned_rules += [(entry.name, own_flags(selector, entry, options), rule) for rule in entry.rules]
    for owner, flags, rule in owned_rules:
        for name in (*rule.values, *(rule.when.keys() - SELECTORS)):
            if name not in known:  # misspelt: a default that would never apply
                raise UsageError(
                    f"a rule of {owner} names {name!r}, no option{close_matches(name, [*known, *SELECTORS])}"
                )
        if rule.applies(config | {name: config[flag] for name, flag in flags.items()}):
            for name, value in ((flags.get(name, name), value) for name, value in rule.values.items()):
                if name in options and name not in explicit:
                    config[name] = by_fidelity(value, fidelity)
    for name, value in config.items():
        if isinstance(value, SameAs):
            qualified = name.removesuffix(options[name].name) + value.option  # of the same part, if two have it
            config[name] = config[qualified if qualified in config else value.option]
    return config


def number_options(config: Config) -> dict[str, Any]:
    """Return the part of a configuration that changes numbers."""
    options = active_options(selected_entries(vars(config)))
    return {name: v for name, v in vars(config).items() if name in SELECTORS or options[name].changes_numbers}


def identity_options(config: Config) -> dict[str, Any]:
    """Return what identifies a run: all that changes numbers, under the names with which runs were first hashed."""
    entries = selected_entries(vars(config))
    options = active_options(entries)
    identity = {name: value for entry in entries.values() for name, value in entry.traits.get("hashed", {}).items()}
    for name, value in number_options(config).items():
        if name in SELECTORS:
            identity[name] = value
        elif value != options[name].omit_from_hash_at:
            old_name = options[name].old_name if options[name].name == name else None
            if options[name].type is content_file and value is not None:
                try:
                    identity[f"{name}_sha256"] = file_digest(value)
                except OSError as error:
                    text = f"--{name}: cannot read {error.filename}: {error.strerror}; give another file"
                    raise UsageError(text) from None
            else:
                identity[old_name or name] = value
    return identity
