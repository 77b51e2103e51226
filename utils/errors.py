"""The two ways a command can end badly, each with one line for the user."""

# How torch refuses batch statistics of a single value, and our layers with it.
TOO_FEW_VALUES = "Expected more than 1 value per channel"


class UsageError(Exception):
    """Bad input: the message says what is wrong and what to do. Exit code 2, nothing written."""


class DataMissing(UsageError):
    """The user has to bring the data, and has not yet: what can be said without them is still said."""


class RunFailed(Exception):
    """A run that started properly and cannot go on. Exit code 1, a record that says why."""
