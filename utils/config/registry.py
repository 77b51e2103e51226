"""Names to builders: adding a model, data set, norm or backbone is adding one file.

Each registry imports every module of its package once, on first use; there is no central list. Files of one's own
outside the checkout are brought in by `utils.config.plugins`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from utils.config.options import Option, Rule
from utils.errors import UsageError


@dataclass(frozen=True)
class Entry:
    """One registered thing: how to build it, the options it owns, the defaults it sets for others."""

    name: str
    build: Callable[..., Any]
    help: str
    options: tuple[Option, ...] = ()
    rules: tuple[Rule, ...] = ()
    traits: dict[str, Any] = field(default_factory=dict)
    module: str = ""  # the one that registered it

    def has_option(self, name: str) -> bool:
        return any(option.name == name for option in self.options)


class Registry:
    """`traits` are the further keywords that a registration of this kind may have; `base` names the class that what is
    registered derives from, and an attribute that shows it."""

    def __init__(self, kind: str, package: str, traits: tuple[str, ...] = (), base: tuple[str, str] | None = None):
        self.kind = kind
        self.package = package
        self.traits = traits
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
    ) -> Callable:
        """Decorator: `@MODELS.register("name", options=(...))` above a class or function."""
        module = sys._getframe(1).f_globals["__name__"]
        for word, given, kind in (("options", options, Option), ("rules", rules, Rule)):
            if not (isinstance(given, tuple) and all(isinstance(one, kind) for one in given)):
                raise TypeError(f"{self.kind} {name!r}: {word} must be a tuple of {kind.__name__}s, such as (one,)")
        for word in traits:
            if word not in self.traits:
                known = ["help", "options", "rules", *self.traits]
                raise TypeError(
                    f"{self.kind} {name!r} is registered with an unknown keyword {word!r}{close_matches(word, known)} "
                    f"Known: {', '.join(known)}"
                )

        def add(build: Callable) -> Callable:
            if name in self._entries:
                other = self._entries[name].module
                raise ValueError(f"{self.kind} {name!r} is registered twice: in {other} and in {module}")
            if self.base and not hasattr(build, self.base[1]):
                raise TypeError(f"{self.kind} {name!r} must be a class derived from {self.base[0]}")
            line = help or (inspect.getdoc(build) or "").split("\n")[0]
            self._entries[name] = Entry(name, build, line, options, rules, traits, module)
            return build

        return add

    def entries(self) -> dict[str, Entry]:
        if not self._loaded:
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
            self._loaded = True
        return self._entries

    def names(self) -> list[str]:
        return sorted(self.entries())

    def get(self, name: str) -> Entry:
        if name in self.entries():
            return self.entries()[name]
        raise UsageError(
            f"unknown {self.kind} {name!r}{close_matches(name, self.names())} Known: {', '.join(self.names())}"
        )


def close_matches(name: str, known: list[str]) -> str:
    """For the end of an error line: what may have been meant. Case, dashes and underscores do not count; the beginning
    of a name may stand for it, and of other names only the closest are any help."""
    wanted = _bare(name)
    alike = {one: SequenceMatcher(None, wanted, _bare(one)).ratio() for one in known}
    best = max(alike.values(), default=0)
    close = sorted((one for one in known if alike[one] >= max(0.6, best - 0.1)), key=alike.get, reverse=True)
    begun = [one for one in known if len(wanted) > 2 and _bare(one).startswith(wanted)]
    found = close[:1] if best == 1 else list(dict.fromkeys([*begun, *close]))[:3]
    return f"; did you mean {' or '.join(found)}?" if found else "."


def _bare(name: str) -> str:
    return re.sub("[-_ ]", "", name).lower()


MODELS = Registry("model", "models", base=("models.method.Method", "unused_options"))
DATASETS = Registry("dataset", "datasets", traits=("backbone",))  # the one it runs with if none is named
BACKBONES = Registry("backbone", "backbone", base=("backbone.network.Network", "n_feature_maps"))
# What its layers share in a network, whether current and replayed samples belong into one forward, and whether what
# earlier tasks left in the network is what it is about.
NORMS = Registry("norm", "backbone.norms", traits=("shared", "joint_replay", "needs_past_tasks"))
REGISTRIES = (MODELS, DATASETS, BACKBONES, NORMS)
