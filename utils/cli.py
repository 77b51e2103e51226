"""The argument parser of the scripts."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from utils import console


class Parser(argparse.ArgumentParser):
    """Reports mistakes in one line that says how to get help, exit code 2. Its `prog` is the module's name."""

    def __init__(self, **settings: Any):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        console.print_error(f"{message}; see python -m {self.prog.removeprefix('python -m ').split()[0]} --help")
        raise SystemExit(2)
