"""two workers against one: the same list of runs, carried through by the local launcher

One worker has all cores as threads, two have one each.
"""

from __future__ import annotations

import tempfile

import numpy as np

from scripts.bench.timing import interleaved, ratio, shown
from scripts.reproduce.launchers.local import LocalEngine
from scripts.reproduce.presets import SMOKE
from scripts.reproduce.runs import Runs
from scripts.reproduce.sweep import sweep
from utils.tables import aligned

MODELS, SEEDS = ("er_ace", "derpp"), (0, 1, 2)
OPTIONS = {"norm": "adab2n", "dataset": "seq-digits"}  # the network of `make run`


class Silent:
    """A display that shows nothing."""

    def say(self, text): ...

    def done(self, run, record): ...

    def failed(self, run, reason, tail): ...

    def update(self, done, running, failed, waiting): ...


def add_arguments(parser) -> None:
    parser.set_defaults(repetitions=3)


def carried_through(workers: int):
    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            runs = Runs(SMOKE, folder)
            options = OPTIONS | {"results_path": folder}
            wanted = [runs._run({"model": model, **options, "seed": seed}) for model in MODELS for seed in SEEDS]
            outcome = sweep(wanted, runs, LocalEngine(workers, [], 1), retries=0, display=Silent())
            assert len(outcome.done) == len(wanted), outcome.failed

    return run


def run(arguments) -> dict:
    candidates = {"one worker": carried_through(1), "two workers": carried_through(2)}
    seconds = interleaved(candidates, arguments.repetitions, warmup=0)
    gain = ratio(seconds["one worker"], seconds["two workers"])
    rows = [[f"{len(MODELS) * len(SEEDS)} runs on the digits", "s"]]
    rows += [[name, f"{np.median(times):.1f}"] for name, times in seconds.items()]
    rows.append(["two workers are faster by", shown(gain)])
    print(aligned(rows), end="\n\n")
    return {"seconds": {name: float(np.median(times)) for name, times in seconds.items()}, "gain": gain}
