"""The examples of the package run and learn."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "chance"), [("plain_loop", 10), ("signals", 17)])
def test_example_learns(name, chance):
    command = [sys.executable, str(CHECKOUT / "docs" / "examples" / f"{name}.py")]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT / "backbone")}
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert int(re.search(r"(\d+) %", printed)[1]) > 2 * chance
