"""Whole commands in fresh processes, many for the price of one start: a process that has imported torch, and nothing of
the project, forks for each of them. What plug-ins register or a command imports is gone with its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# Its arguments are the file with the commands and the code to run before torch is imported.
SERVER = """
import json, os, sys, traceback
from pathlib import Path

exec(sys.argv[2])
import torch

before = set(sys.modules)

def run(command):
    for stream, file in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(command["folder"], file), os.O_WRONLY | os.O_CREAT), stream)
    os.chdir(command["cwd"])
    os.environ.update(command["env"])
    sys.argv = ["main.py", *command["words"]]
    try:
        import main
        code = main.main()
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    report = {"code": code, "modules": sorted(set(sys.modules) - before)}
    Path(command["folder"], "report.json").write_text(json.dumps(report))

for command in json.loads(Path(sys.argv[1]).read_text()):
    child = os.fork()
    if child == 0:
        try:
            run(command)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""


@dataclass(frozen=True)
class Command:
    words: Sequence[str]
    cwd: Path = ROOT
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    code: int
    stdout: str
    stderr: str
    modules: list[str]  # imported in addition to those of `import torch`
    record: dict[str, Any] | None  # what the last line points to


# What torch imports with the first optimizer takes longer than a short run.
WARM = "import torch._dynamo"


def forked(folder: Path, commands: Sequence[Command], *, before: str = WARM) -> list[Ended]:
    """How the commands ended, in their order; `folder` is for what they print, `before` runs before torch comes."""
    described = []
    for number, command in enumerate(commands):
        place = folder / f"command-{number}"
        place.mkdir(parents=True)
        described.append({"words": [*command.words], "cwd": str(command.cwd), "folder": str(place), "env": command.env})
    (folder / "commands.json").write_text(json.dumps(described))
    before = f"import sys; sys.path[0] = {str(ROOT)!r}\n{before}"
    words = [sys.executable, "-c", SERVER, str(folder / "commands.json"), before]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("ADAB2N_PLUGINS", None)
    server = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert server.returncode == 0, server.stderr
    return [_ended(Path(each["folder"]), Path(each["cwd"])) for each in described]


def _ended(folder: Path, cwd: Path) -> Ended:
    stdout, stderr = ((folder / name).read_text() for name in ("stdout", "stderr"))
    assert (folder / "report.json").exists(), f"the process died: {stderr}"
    report = json.loads((folder / "report.json").read_text())
    last = (stdout.splitlines() or [""])[-1]
    path = cwd / last.removeprefix("record: ") if last.startswith("record: ") else None
    return Ended(stdout=stdout, stderr=stderr, record=path and json.loads(path.read_text()), **report)


def refusal(ended: Any) -> str:
    """Return the one line of a command that was refused."""
    assert ended.code == 2, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    return line
