"""What an option is, how its values are checked, and how a default may depend on other choices.

Every owner (the loop, a data set, a model, a norm, a backbone) declares its options beside its code:

    Option("kappa", number(0, 1), "between cumulative (0) and exponential (1) average", default=0.7)

A default is a plain value, `ByFidelity(official, paper)` for a switch on which the paper and the released
code differ, or `SameAs("batch_size")`. Owners may also set defaults of options that are not theirs, under
conditions, with `Rule`s; `utils.config.arguments` is the one place that resolves all of it.
"""

from __future__ import annotations

import argparse
import errno
import math
import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any


@dataclass(frozen=True)
class ByFidelity:
    """A switch: the value that made the published numbers, and the value that the text describes."""

    official: Any
    paper: Any

    def pick(self, fidelity: str) -> Any:
        return {"official": self.official, "paper": self.paper}[fidelity]


@dataclass(frozen=True)
class SameAs:
    """A default taken from another option once that one is resolved."""

    option: str


ALWAYS_COUNTED: Any = object()  # equal to no value of an option


@dataclass(frozen=True)
class Option:
    name: str
    type: Callable[[str], Any]
    help: str
    default: Any = None
    # Does another value of it make other numbers? Only then is it part of a run's identity.
    changes_numbers: bool = True
    # The value at which it is left out of that identity all the same: an option that came later does not rename the
    # runs there were before, when it stands at what they did.
    neutral: Any = ALWAYS_COUNTED
    several: bool = False  # takes several values, also by being given again; a tuple

    @property
    def flag(self) -> str:
        return f"--{self.name}"


@dataclass(frozen=True)
class Rule:
    """Defaults that hold when every condition does: a value, a tuple of values, or a predicate."""

    values: dict[str, Any]
    when: dict[str, Any] = field(default_factory=dict)

    def applies(self, config: dict[str, Any]) -> bool:
        return all(_holds(condition, config.get(name)) for name, condition in self.when.items())


def _holds(condition: Any, value: Any) -> bool:
    if callable(condition):
        return condition(value)
    return value in condition if isinstance(condition, tuple) else value == condition


def default_values(options: Iterable[Option], fidelity: str = "official") -> dict[str, Any]:
    return {
        option.name: option.default.pick(fidelity) if isinstance(option.default, ByFidelity) else option.default
        for option in options
    }


def at_least(low: float) -> Callable[[float], bool]:
    return lambda value: value is not None and value >= low


# --- value types: callables from text to value that refuse with a readable line ------------------------------
#
# `metavar`, if one has it, is what --help calls the value.


def _refuse(wanted: str, text: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"must be {wanted}, got {text!r}")


def _between(kind: str, low: float, high: float) -> str:
    if math.isinf(high):
        return kind if math.isinf(low) else f"{kind} of at least {low}"
    return f"{kind} from {low} to {high}"


def integer(low: float = -math.inf, high: float = 10**9) -> Callable[[str], int]:
    wanted = _between("a whole number", low, high)

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise _refuse(wanted, text) from None
        if not low <= value <= high:
            raise _refuse(wanted, text)
        return value

    parse.metavar = "N"
    return parse


def number(low: float = -math.inf, high: float = math.inf, *, exclusive: bool = False) -> Callable[[str], float]:
    wanted = _between("a number", low, high) + (", ends excluded" if exclusive else "")

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise _refuse(wanted, text) from None
        inside = low < value < high if exclusive else low <= value <= high
        if not (math.isfinite(value) and inside):
            raise _refuse(wanted, text)
        return value

    parse.metavar = "X"
    return parse


ONE_OF_TASKS_SEEN = "1/T"  # a share that falls with the number of tasks seen


def share(text: str) -> str:
    """A share above 0 and up to 1 as a fraction in lowest terms, or `1/T`."""
    if text == ONE_OF_TASKS_SEEN:
        return text
    try:
        value = Fraction(text if re.fullmatch("[0-9./]{1,19}", text) else 0)  # no exponents: they may be enormous
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if not 0 < value <= 1:
        raise _refuse("a share above 0 and up to 1 such as 1/5 or 0.2, or 1/T with T the tasks seen", text)
    return str(value)


share.metavar = "SHARE"


def choice(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise _refuse("one of " + ", ".join(names), text)
        return text

    parse.metavar = "{" + ",".join(names) + "}"
    return parse


def choices(*names: str) -> Callable[[str], tuple[str, ...]]:
    """Some of these names, separated by commas, or `none`."""

    def parse(text: str) -> tuple[str, ...]:
        chosen = () if text == "none" else tuple(text.split(","))
        if not set(chosen) <= set(names) or len(set(chosen)) < len(chosen):
            raise _refuse(f"some of {', '.join(names)}, separated by commas, or none", text)
        return tuple(name for name in names if name in chosen)

    parse.metavar = "NAME,..."
    return parse


def text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _refuse("valid text", value) from None
    return value


def path(value: str) -> str:
    """A path that may exist, whether or not it does, and can be printed in a line."""
    if "\0" in text(value) or value.splitlines() != [value]:
        raise _refuse("a path", value)
    try:
        os.lstat(value)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise _refuse(f"a path ({error.strerror})", f"{value[:80]}...") from None
    return value


def folder(value: str) -> str:
    """A path that is a folder or may become one."""
    try:
        is_folder = stat.S_ISDIR(os.stat(path(value)).st_mode)
    except OSError as error:  # absent; what else there may be shows when it is used
        is_folder = not isinstance(error, NotADirectoryError)
    if not is_folder:
        raise _refuse("a folder", value)
    return value


def flag(value: str) -> bool:
    """Marks an option that takes no value; the parser turns it into `store_true`."""
    raise AssertionError("a flag has no text to parse")


text.metavar, path.metavar, folder.metavar = "TEXT", "PATH", "FOLDER"
