"""Every method with every norm on the embedded digits: `python -m scripts.matrix [flags of main.py]` or `make matrix`.

72 runs in this process, about twenty minutes on two cores; finished ones are not repeated. Checks that every run has
Class-IL and Task-IL, and that replay clearly beats fine-tuning with the same norm where batch statistics are used.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from main import main
from utils.tables import aligned

METHODS = ("sgd", "joint", "er", "er_ace", "derpp", "er_ace_lider", "derpp_lider",
           "der", "agem", "gdumb", "icarl", "ewc_on")  # fmt: skip
REPLAY = ("er", "er_ace", "derpp", "er_ace_lider", "derpp_lider")
# What keeps a method's run short; for its own numbers GDumb takes 256 epochs.
SHORT = {"gdumb": ("--fitting_epochs", "4")}
NORMS = ("bn", "ln", "in", "gn", "cn", "adab2n")
CHECKED = ("bn", "cn", "adab2n")
MARGIN = 20.0  # points of Class-IL accuracy that replay must be above fine-tuning


def run(method: str, norm: str, flags: Sequence[str]) -> tuple[int, dict | None]:
    """(exit code, results)."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        words = ["--model", method, "--norm", norm, "--dataset", "seq-digits", "--non_verbose"]
        code = main([*words, *SHORT.get(method, ()), *flags])
    path = Path(output.getvalue().splitlines()[-1].removeprefix("record: ")) if code == 0 else None
    return code, json.loads(path.read_text())["results"] if path else None


def matrix(flags: Sequence[str]) -> int:
    """`flags` are further ones of main.py, for every run."""
    if {"-h", "--help"} & set(flags):
        print(__doc__.strip())
        return 0
    results = {}
    for method in METHODS:
        for norm in NORMS:
            code, results[method, norm] = run(method, norm, flags)
            if code in (2, 130, 143):  # bad usage for all, or told to stop
                return code
            print(f"{len(results)}/{len(METHODS) * len(NORMS)} {method} {norm}", file=sys.stderr)
    failed = [pair for pair, result in results.items() if not result or not {"class_il", "task_il"} <= set(result)]
    if failed:
        print("failed: " + ", ".join(f"{method} with {norm}" for method, norm in failed))
        return 1
    for setting in ("class_il", "task_il"):
        faa = {pair: result[setting]["metrics"]["faa"] for pair, result in results.items()}
        rows = [[f"{setting} FAA, %", *NORMS]]
        rows += [[method, *(f"{faa[method, norm]:.1f}" for norm in NORMS)] for method in METHODS]
        print(aligned(rows) + "\n")
    margins = {
        (method, norm): results[method, norm]["class_il"]["metrics"]["faa"]
        - results["sgd", norm]["class_il"]["metrics"]["faa"]
        for method in REPLAY
        for norm in CHECKED
    }
    low = [f"{method} with {norm}: {gain:.1f}" for (method, norm), gain in margins.items() if gain < MARGIN]
    print(f"{len(results)} runs finished; smallest gain of replay over sgd {min(margins.values()):.1f} points")
    if low:
        print(f"less than {MARGIN} points above sgd: " + "; ".join(low))
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(matrix(sys.argv[1:]))
