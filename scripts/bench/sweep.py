"""two workers against one: runs of the smoke preset, carried through by the local launcher

Two workers have one thread each. One worker has all cores, as the launcher gives it by default, or one thread too.
"""

from __future__ import annotations

import tempfile

import numpy as np

from scripts.bench.timing import interleaved, ratio, shown
from scripts.reproduce.launchers.local import LocalEngine
from scripts.reproduce.plans import PLANS
from scripts.reproduce.presets import SMOKE
from scripts.reproduce.runs import Run, Runs
from scripts.reproduce.selection import Selection, needed
from scripts.reproduce.sweep import sweep
from utils.tables import aligned

SEEDS = (0, 1)


class Silent:
    """A display that shows nothing."""

    def say(self, text): ...

    def done(self, run, record): ...

    def failed(self, run, reason, tail): ...

    def update(self, done, running, failed): ...


def add_arguments(parser) -> None:
    parser.set_defaults(repetitions=3)


def runs_of_table6(folder: str) -> tuple[Runs, list[Run]]:
    selection = Selection("fixed", Runs(SMOKE, folder), SEEDS)
    return selection.runs, list(needed([PLANS["table6"]], selection)[0].values())


def carried_through(workers: int, threads: int | None = None):
    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            runs, wanted = runs_of_table6(folder)
            engine = LocalEngine(workers, [], 1, threads)
            outcome = sweep(wanted, runs, engine, retries=0, display=Silent())
            assert len(outcome.done) == len(wanted), outcome.failed

    return run


def run(arguments) -> dict:
    candidates = {
        "one worker with all cores": carried_through(1),
        "one worker with one thread": carried_through(1, 1),
        "two workers": carried_through(2),
    }
    carried_through(2)()  # starts the server that all of them share
    seconds = interleaved(candidates, arguments.repetitions, warmup=0)
    rows = [["8 runs of the smoke preset", "s", "two workers are faster by"]]
    gains = {name: ratio(times, seconds["two workers"]) for name, times in seconds.items()}
    rows += [[name, f"{np.median(times):.1f}", shown(gains[name])] for name, times in seconds.items()]
    print(aligned(rows), end="\n\n")
    return {"seconds": {name: float(np.median(times)) for name, times in seconds.items()}, "gains": gains}
