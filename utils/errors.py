"""The two ways a command can end badly, each with one line for the user."""


class UsageError(Exception):
    """Bad input: the message says what is wrong and what to do. Exit code 2, nothing written."""


class RunFailed(Exception):
    """A run that started properly and cannot go on. Exit code 1, a record that says why."""
