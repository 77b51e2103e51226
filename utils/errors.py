"""Exceptions that end a command with one line for the user."""

# The beginning of torch's error for batch statistics of a single value, which our layers raise as well.
TOO_FEW_VALUES = "Expected more than 1 value per channel"


class UsageError(Exception):
    """Bad input. The message says what is wrong and what to do. Exit code 2, nothing is written."""


class DataMissing(UsageError):
    """The user has not provided the data yet. A dry run works without them."""


class RunFailed(Exception):
    """A run that started properly and cannot continue. Exit code 1, and a record that says why."""


class RunLocked(Exception):
    """Another process holds the lock of a run's folder; the message names it. Exit code 3."""
