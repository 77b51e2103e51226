"""`make readme`: every command of README, guides and tutorials, in a copy of the checkout, as a new user runs them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readme import GUIDE, TUTORIALS, commands, examples

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the tracked files with this environment and the README's plug-ins."""
    folder = tmp_path_factory.mktemp("checkout")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(Path(sys.prefix).resolve())
    for name, text in examples(GUIDE + TUTORIALS).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("command", [*commands(GUIDE), *commands(TUTORIALS)])
def test_command(command, checkout):
    runs = sorted(path.parent.name for path in checkout.glob("results/runs/*/record.json"))
    line = command.replace("NAME", runs[0]) if runs else command
    environment = os.environ | {"PATH": f"{checkout / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(line, shell=True, cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
