"""What tests of sweeps share: a display that remembers, results, and patience."""

import json
import time

from scripts.reproduce.runs import Run


class Told:
    """A display that remembers what it was told."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    def done(self, run, record):
        self.lines.append(f"done {run.name}")

    def failed(self, run, reason, tail):
        self.lines.append(f"failed {run.name} {reason}\n{tail}")

    def update(self, done, running, failed):
        pass


def results_of(run: Run) -> dict:
    return json.loads((run.folder / "record.json").read_text())["results"]


def wait_for(condition, seconds: float = 120.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)
    return found
