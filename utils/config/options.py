"""Options: what a flag is, how its value is parsed, and how its default may depend on other choices.

Every owner (the loop, a data set, a model, a norm, a backbone) declares its options beside its code:

    Option("kappa", number(0, 1), "Interpolates between cumulative (0) and exponential (1) average.", default=0.7)

A default is a plain value, `ByFidelity(official, paper)` for a switch on which the paper and the released code differ,
or `SameAs("batch_size")`. With `Rule`s, owners set defaults of options that are not theirs. `utils.config.resolve`
resolves all of it.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar


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
        type: A function from text to value, `choice("a", "b")`, or `flag` for an option without a value.
        help: A sentence for --help.
        default: A value, a `ByFidelity` or a `SameAs`.
        changes_numbers: Whether another value gives other results. Only then the option identifies a run.
        omit_from_hash_at: At this value the option is not hashed, so that runs from before the option keep their names.
        several: Whether the flag takes several values, as a tuple.
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
    several: bool = False
    old_name: str | None = None
    check: Callable[[dict[str, Any], dict[str, Any]], None] | None = None

    def __post_init__(self) -> None:
        if self.type is bool and self.default is None:
            object.__setattr__(self, "default", False)

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


def by_fidelity(value: Any, fidelity: str) -> Any:
    """Return the value that a default has under `--fidelity`."""
    return getattr(value, fidelity) if isinstance(value, ByFidelity) else value


def default_values(options: Iterable[Option], fidelity: str = "official") -> dict[str, Any]:
    return {option.name: by_fidelity(option.default, fidelity) for option in options}


# --- value types ------------------------------------------------------------------------------------------------------

flag = bool  # the type of options without a value
Number = TypeVar("Number", int, float)
ONE_OF_TASKS_SEEN = "1/T"  # a share that falls with the number of tasks seen


def choice(*names: str) -> tuple[str, ...]:
    """Return the type of an option that has one of these values."""
    return names


def invalid(wanted: str, text: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"must be {wanted} (got {text[:80]!r})")


def integer(low: float = -math.inf, high: float = 10**9) -> Callable[[str], int]:
    return _bounded(int, f"an integer from {low} to {high}", lambda value: low <= value <= high)


def number(low: float = -math.inf, high: float = math.inf, *, exclusive: bool = False) -> Callable[[str], float]:
    wanted = f"a number from {low} to {high}" + ", ends excluded" * exclusive
    return _bounded(float, wanted, lambda value: low < value < high if exclusive else low <= value <= high)


def _bounded(convert: Callable[[str], Number], wanted: str, inside: Callable[[float], bool]) -> Callable[[str], Number]:
    def parse(text: str) -> Number:
        try:
            value = convert(text)
        except ValueError:
            raise invalid(wanted, text) from None
        if not inside(value) or not math.isfinite(value):
            raise invalid(wanted, text)
        return value

    return parse


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
