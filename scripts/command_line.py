"""What the scripts' command lines have in common: a mistake is one line that says where help is, exit code 2."""

from __future__ import annotations

import argparse
from typing import NoReturn

from utils import process


class Parser(argparse.ArgumentParser):
    """Its `prog` is the module's name."""

    def __init__(self, **settings):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        process.complain(f"{message}; see python -m {self.prog.removeprefix('python -m ').split()[0]} --help")
        raise SystemExit(2)
