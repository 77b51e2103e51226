"""The argument parser of all commands."""

import argparse
from typing import Any, NoReturn

from utils.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Raises mistakes as UsageError, which commands print in one line."""

    def __init__(self, **settings: Any):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see --help")
