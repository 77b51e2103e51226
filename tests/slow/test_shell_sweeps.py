"""`make sweeps`: the commands of every shell sweep with its first seed, in miniature on the embedded digits."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

SWEEPS = sorted((Path(__file__).resolve().parents[2] / "scripts").glob("*.sh"))
SMALL = ["--dataset", "seq-digits", "--num_filters", "2", "--debug_mode"]
GROUPS = {"gn": ["--groups", "2"], "cn": ["--groups", "2"]}


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.stem)
def test_shell_sweep(sweep, run_main):
    environment = os.environ | {"PYTHON": "echo"}
    printed = subprocess.run([sweep], env=environment, capture_output=True, text=True, check=True).stdout
    commands = [shlex.split(line) for line in printed.splitlines()]
    assert {program for program, *_ in commands} == {"main.py"}
    first = [flags for _, *flags in commands if flags[flags.index("--seed") + 1] == "0"]
    assert first
    for flags in first:
        norm = flags[flags.index("--norm") + 1] if "--norm" in flags else "bn"
        finished = run_main(*flags, *SMALL, *GROUPS.get(norm, []))
        assert finished.code == 0, (flags, finished.stderr)
        assert finished.record["status"] == "finished"
