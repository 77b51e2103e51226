"""from the command to the first step, against importing torch and torchvision and building the network

Every repetition is a fresh process; the first step ends it.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from scripts.bench.timing import interleaved, ratio, shown
from utils.tables import aligned

COMMAND = ["--model", "derpp", "--norm", "adab2n", "--dataset", "seq-digits", "--rerun", "--results_path"]
LIMIT = """
import torch, torchvision
net = torchvision.models.resnet18(num_classes=10)
"""
FIRST_STEP = """
import os, sys
import main
from models.method import Method
step = Method.step
def stop(self, batch, place):
    step(self, batch, place)
    os._exit(0)
Method.step = stop
main.main(sys.argv[1:])
"""
IMPORTS = "import utils.run.training, utils.run.execution; from utils.config import parser; parser.build_parser()"
DATA = IMPORTS + "; from datasets.seq_digits import SeqDigits; SeqDigits().read(None)"


def add_arguments(parser) -> None:
    parser.set_defaults(repetitions=7)


def process(code: str, *words: str):
    def run() -> None:
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    return run


def run(arguments) -> dict:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        candidates = {
            "command to first step": process(FIRST_STEP, *COMMAND, folder),
            "import torch, torchvision; build the network": process(LIMIT),
            "import torch": process("import torch"),
            "import of all that a run needs": process(IMPORTS),
            "the same, and reading the data": process(DATA),
        }
        seconds = interleaved(candidates, arguments.repetitions, warmup=1)
    rows = [["start-up", "s"], *([name, f"{np.median(times):.2f}"] for name, times in seconds.items())]
    result = ratio(*list(seconds.values())[:2])
    rows.append(["first step against import and build", shown(result)])
    print(aligned(rows), end="\n\n")
    return {"seconds": {name: float(np.median(times)) for name, times in seconds.items()}, "first_step": result}
