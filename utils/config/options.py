"""Options: what a flag is, how its value is parsed, and how its default may depend on other choices.

Every owner (the loop, a data set, a model, a norm, a backbone) declares its options beside its code, and with `Rule`s
sets defaults of options that are not its own. `utils.config.resolve` resolves all of it.
"""

import argparse
import hashlib
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, partial
from typing import Any


@dataclass(frozen=True)
class ByFidelity:
    """A switch: the value that made the published numbers, and the value that the text describes."""

    official: Any
    paper: Any


@dataclass(frozen=True)
class SameAs:
    """A default taken from another option once that one is resolved."""

    option: str


ALWAYS_COUNTED: Any = object()  # equal to no value of an option


@dataclass(frozen=True)
class Option:
    """One flag of a run.

    Args:
        name: The flag without dashes, and the attribute of the configuration.
        type: A function from text to value, `choice("a", "b")`, `flag` for an option without a value, or
            `content_file` for the path of a file.
        help: A sentence for --help.
        default: A value, a `ByFidelity` or a `SameAs`.
        changes_numbers: Whether another value gives other results. Only then the option identifies a run.
        omit_from_hash_at: At this value the option is not hashed, so that runs from before the option keep their names.
        old_name: The name before a renaming. It is still accepted, and still the key in a run's identity.
        check: `check(config, explicit)` is called with all resolved values and with those that the user gave. It raises
            UsageError where they contradict each other, and may set options that follow from this one.
    """

    name: str
    type: Callable[[str], Any] | tuple[str, ...]
    help: str
    default: Any = None
    changes_numbers: bool = True
    omit_from_hash_at: Any = ALWAYS_COUNTED
    old_name: str | None = None
    check: Callable[[dict[str, Any], dict[str, Any]], None] | None = None

    def __post_init__(self) -> None:
        if self.type is bool and self.default is None:
            object.__setattr__(self, "default", False)


FreeOption = partial(Option, changes_numbers=False)  # no part of a run's identity


def added_option(name: str, type: Any, help: str, default: Any = None, **more: Any) -> Option:
    """Return an option that is not hashed at its default, so that runs from before the option keep their names."""
    default = False if type is bool else default
    return Option(name, type, help, default, omit_from_hash_at=default, **more)


@dataclass(frozen=True)
class Rule:
    """Defaults that hold when every condition does: a value, a tuple of values, or a predicate."""

    values: dict[str, Any]
    when: dict[str, Any] = field(default_factory=dict)

    def applies(self, config: dict[str, Any]) -> bool:
        for name, condition in self.when.items():
            wanted = condition if isinstance(condition, tuple) else (condition,)
            value = config.get(name)
            if not (condition(value) if callable(condition) else value in wanted):
                return False
        return True


def by_fidelity(value: Any, fidelity: str) -> Any:
    """Return the value that a default has under `--fidelity`."""
    return getattr(value, fidelity) if isinstance(value, ByFidelity) else value


# --- value types ------------------------------------------------------------------------------------------------------

flag = bool  # the type of options without a value
ONE_OF_TASKS_SEEN = "1/T"  # a share that falls with the number of tasks seen
GRADUAL = ("blurry", "gaussian")  # kinds of --boundary that have a strength
WITHOUT_BOUNDARIES = ("none", *GRADUAL)


def choice(*names: str) -> tuple[str, ...]:
    """Return the type of an option that has one of these values."""
    return names


def invalid(wanted: str, text: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"must be {wanted} (got {text[:80]!r})")


def number(low: float, high: float = math.inf, *, exclusive: bool = False, kind: type = float) -> Callable[[str], Any]:
    """Return the type of an option that has a number in this range; `exclusive` leaves out the ends."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        inside = low < value < high if exclusive else low <= value <= high
        if not inside or not math.isfinite(value):
            name = "an integer" if kind is int else "a number"
            raise invalid(f"{name} from {low} to {high}" + ", ends excluded" * exclusive, text)
        return value

    return parse


def integer(low: float, high: float = 10**9) -> Callable[[str], int]:
    return number(low, high, kind=int)


def share(text: str) -> str:
    """Return a share above 0 and up to 1 as a fraction in lowest terms, or `1/T`."""
    if text == ONE_OF_TASKS_SEEN:
        return text
    if re.fullmatch(r"[0-9]{1,5}/0*[1-9][0-9]{0,5}|[0-9]{0,5}\.?[0-9]{1,9}", text) and 0 < Fraction(text) <= 1:
        return str(Fraction(text))
    raise invalid("a share above 0 and up to 1 such as 1/5 or 0.2, or 1/T with T the number of tasks seen", text)


def subset(*names: str) -> Callable[[str], tuple[str, ...]]:
    """Return the type of an option that has some of these names, separated by commas, or `none`."""

    def parse(text: str) -> tuple[str, ...]:
        chosen = () if text == "none" else text.split(",")
        if not set(chosen) <= set(names):
            raise invalid(f"some of {', '.join(names)}, separated by commas, or none", text)
        return tuple(name for name in names if name in chosen)

    return parse


def content_file(text: str) -> str:
    """Return the absolute path of a file that counts by its content, such as one with weights.

    The path is no part of a run's identity; the SHA-256 of the content is.
    """
    if not os.path.isfile(text):
        raise invalid("an existing file", text)
    return os.path.abspath(text)


def file_digest(path: str) -> str:
    """Return the SHA-256 of a file's content; raise OSError if it cannot be read."""
    status = os.stat(path)
    return _digest(path, status.st_mtime_ns, status.st_size)


@cache
def _digest(path: str, changed: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
