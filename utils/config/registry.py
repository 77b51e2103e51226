"""Names to builders. Each registry imports every module of its package on first use; there is no central list."""

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from utils.config.options import Option, Rule
from utils.errors import UsageError

Build = TypeVar("Build", bound=Callable[..., Any])

# Names of options that the loop uses, and the kind of part that may have them; `loop_options` adds its own.
RESERVED_OPTIONS = {"n_tasks": "dataset", "validation": "dataset", "base_path": "dataset", "norm_impl": "norm"}
_SELECTORS = ("model", "norm", "dataset", "backbone", "buffer_mode")
RESERVED_OPTIONS |= dict.fromkeys((*_SELECTORS, "seeds", "config", "list", "help"), "loop")
FAILED_FILES: dict[str, str] = {}  # plug-in files that could not be imported, and why


@dataclass(frozen=True)
class Entry:
    """A registered part: how to build it, the options it owns, the defaults it sets for others."""

    name: str
    build: Any  # a class or a function; what it must offer depends on the registry
    help: str
    options: tuple[Option, ...] = ()
    rules: tuple[Rule, ...] = ()
    traits: dict[str, Any] = field(default_factory=dict)
    module: str = ""  # the module that registered it
    ambiguous: str = ""  # says who else registered the name

    def has_option(self, name: str) -> bool:
        return any(option.name == name for option in self.options)


class Registry:
    """The parts of one kind, which the modules of a package, or one module, register.

    `traits` are further keywords of a registration; `base` is the class that parts derive from, with an attribute that
    only this class has. A new `numerics_version`, for a fix that changes results, renames the runs of this part only;
    `hashed` are constants of the identity, for options that the part no longer has. Parts that do not `change_numbers`
    are no part of the identity, and neither are their options.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        traits: tuple[str, ...] = (),
        base: tuple[str, str] | None = None,
        *,
        change_numbers: bool = True,
    ):
        self.kind, self.package, self.change_numbers = kind, package, change_numbers
        self.traits = (*traits, "hashed", "numerics_version") if change_numbers else traits
        self.base = base
        self._entries: dict[str, Entry] = {}
        self._loaded = False

    def register(
        self,
        name: str,
        *,
        help: str = "",
        options: tuple[Option, ...] = (),
        rules: tuple[Rule, ...] = (),
        **traits: Any,
    ) -> Callable[[Build], Build]:
        """Return a decorator: `@MODELS.register("name", options=(...))` above a class or function.

        Args:
            name: The value of the flag that selects the part.
            help: A line for `--list`; by default the first line of the docstring.
            options: The options that the part owns.
            rules: Defaults that it sets for options, its own or others'.
            traits: Further properties, which depend on the registry: `backbone` of data sets; `shared`, `joint_replay`,
                `needs_past_tasks` and `needs_boundaries` of norms; `smaller_is_better` of metrics; `numerics_version`
                of parts that change numbers.

        Example:
            >>> FACTOR = Option("factor", number(0), "The constant.", default=2.0)
            >>> @NORMS.register("scaled_bn", help="BN times a constant", options=(FACTOR,))
            ... def scaled_bn(channels, *, spatial, factor):
            ...     return nn.Sequential(nn.BatchNorm2d(channels), Times(factor))
        """
        module = sys._getframe(1).f_globals["__name__"]
        if not re.fullmatch(r"[\w.+-]+", name):  # it is part of file names
            raise ValueError(f"{self.kind} {name!r}: a name has letters, digits and _.+- only")
        if not (isinstance(options, tuple) and isinstance(rules, tuple)):
            raise TypeError(f"{self.kind} {name!r}: options and rules must be tuples, such as (option,)")
        if not self.change_numbers:
            if rules or (options and self.kind == "metric"):
                raise TypeError(f"{self.kind} {name!r} must have no {'rules' if rules else 'options'}; remove them")
            options = tuple(replace(option, changes_numbers=False) for option in options)
            from utils.tables import MEASURED_METRICS

            if self.kind == "metric" and name in MEASURED_METRICS:
                raise ValueError(f"metric {name!r} is one that the loop measures; rename it")
        known = ["help", "options", "rules", *self.traits]
        if unknown := [keyword for keyword in traits if keyword not in known]:
            raise TypeError(f"{self.kind} {name!r}: unknown keyword {unknown[0]!r}{close_matches(unknown[0], known)}")

        def add(build: Build) -> Build:
            if other := self._entries.get(name):
                message = f"{self.kind} {name!r} is registered twice: in {other.module} and in {module}"
                self._entries[name] = replace(other, ambiguous=message)
                raise ValueError(message)
            if self.base and not hasattr(build, self.base[1]):
                raise TypeError(f"{self.kind} {name!r} must be a class derived from {self.base[0]}")
            if missing := sorted(getattr(build, "__abstractmethods__", ())):
                raise TypeError(f"{self.kind} {name!r} must define {' and '.join(missing)}")
            line = help or (inspect.getdoc(build) or "").split("\n")[0]
            entry = Entry(name, build, line, options, rules, traits, module)
            self._check_names(entry)
            self._entries[name] = entry
            return build

        return add

    def _check_names(self, new: Entry) -> None:
        """Raise ValueError if an option is one of the loop, or if a rule of another part could mean two options."""
        names = [option.name for option in new.options]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{self.kind} {new.name!r} declares option {name!r} twice; remove one")
            if RESERVED_OPTIONS.get(name, self.kind) != self.kind:
                raise ValueError(f"{self.kind} {new.name!r} declares option {name!r}, which the loop has; rename it")
        parts = [(registry.kind, entry) for registry in REGISTRIES for entry in registry._entries.values()]
        parts.append((self.kind, new))
        kinds: dict[str, set[str]] = {}  # of the parts that have an option
        for kind, entry in parts:
            for option in entry.options:
                kinds.setdefault(option.name, set()).add(kind)
        for kind, entry in parts:
            for name in {name for rule in entry.rules for name in (*rule.values, *rule.when)}:
                if len(kinds.get(name, ())) > 1 and not entry.has_option(name):
                    about = f"a rule of {kind} {entry.name!r} is about option {name!r}"
                    owners = " and a ".join(sorted(kinds[name]))
                    raise ValueError(f"{about}, which a {owners} would have; rename that of {self.kind} {new.name!r}")

    def entries(self) -> dict[str, Entry]:
        if not self._loaded:
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(getattr(package, "__path__", [])):
                importlib.import_module(f"{self.package}.{module.name}")
            self._loaded = True
        return self._entries

    def names(self) -> list[str]:
        return sorted(self.entries())

    def get(self, name: str) -> Entry:
        if name not in self.entries():
            close = close_matches(name, self.names())
            failed = "".join(f"; {reason}" for reason in FAILED_FILES.values())
            raise UsageError(f"unknown {self.kind} {name!r}{close} Known: {', '.join(self.names())}{failed}")
        entry = self.entries()[name]
        if entry.ambiguous:
            raise UsageError(f"{entry.ambiguous}; rename one")
        return entry


def close_matches(name: str, known: Iterable[str]) -> str:
    """Return the end of an error line: the names that may have been meant."""
    close = get_close_matches(name, list(known))
    return f"; did you mean {' or '.join(close)}?" if close else "."


MODELS = Registry("model", "models", base=("models.method.Method", "unused_options"))
DATASETS = Registry("dataset", "datasets", traits=("backbone",))  # the default backbone
BACKBONES = Registry("backbone", "backbone", base=("backbone.network.Network", "n_feature_maps"))
# shared: the object that all layers of a network share. joint_replay: whether current and replayed samples belong in
# one forward pass. needs_past_tasks: whether the norm relies on what earlier tasks left in the network.
# needs_boundaries: whether it must know the tasks of samples.
NORMS = Registry("norm", "backbone.norms", traits=("shared", "joint_replay", "needs_past_tasks", "needs_boundaries"))
BUFFERS = Registry("buffer", "utils.data", base=("utils.data.buffer.Policy", "stores_losses"))
METRICS = Registry("metric", "utils.run.metrics", traits=("smaller_is_better",), change_numbers=False)
OBSERVERS = Registry(
    "observer", "utils.run.probes", base=("utils.run.observers.Observer", "needs_hooks"), change_numbers=False
)
REGISTRIES = (MODELS, NORMS, DATASETS, BACKBONES, BUFFERS, METRICS, OBSERVERS)
