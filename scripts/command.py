"""`adab2n`: main.py as a command of an installed checkout, `pip install -e .`."""

from __future__ import annotations

import sys
from typing import NoReturn

from utils import console


def adab2n() -> NoReturn:
    console.begin()  # before torch, which takes seconds to import, comes with main
    from main import main

    sys.exit(console.end(main()))
