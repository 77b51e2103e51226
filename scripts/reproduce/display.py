"""One progress display for a whole sweep: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sized

from scripts.reproduce.runs import Run, progress_of
from utils.tables import duration

EVERY = 30.0  # seconds between two plain lines


class Display:
    def __init__(self, total: int, already: int, slots: int, expected: dict[str, float | None]):
        """`expected`: seconds that each run of the sweep will take, None where unknown."""
        self.total, self.already, self.slots, self.expected = total, already, slots, expected
        self.last_line = time.monotonic()
        self.finished: set[str] = set()
        self.durations: list[float] = []
        self.bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=total, initial=already, unit="run", dynamic_ncols=True, file=sys.stderr)

    def say(self, text: str) -> None:
        if self.bar:
            self.bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def done(self, run: Run, record: dict) -> None:
        self.finished.add(run.name)
        self.durations.append(record["wall_seconds"])
        results = record["results"]
        shown = ", ".join(f"{name} {found['metrics']['faa']:.2f}" for name, found in results.items())
        self.say(f"done   {run.name}: {shown} in {record['wall_seconds']:.0f} s")

    def failed(self, run: Run, reason: str, tail: str) -> None:
        self.finished.add(run.name)
        self.say(f"FAILED {run.name}: {reason}; its log, {run.log}, ends\n{tail}")

    def update(self, done: int, running: list[Run], failed: Sized) -> None:
        text = f"{len(failed)} failed, {self._left()} left; " + "; ".join(map(under_way, running))
        if self.bar:
            self.bar.n = self.already + done
            self.bar.set_postfix_str(text)
        elif time.monotonic() - self.last_line > EVERY:
            self.last_line = time.monotonic()
            print(f"{self.already + done} of {self.total} done, {text}", file=sys.stderr, flush=True)

    def _left(self) -> str:
        """By measured speed; runs that nothing is known about take as long as the others did."""
        mean = sum(self.durations) / len(self.durations) if self.durations else None
        seconds = [self.expected[name] or mean for name in self.expected if name not in self.finished]
        if not seconds:
            return "nothing"
        return "?" if None in seconds else duration(sum(seconds) / self.slots)

    def close(self) -> None:
        if self.bar:
            self.bar.close()


def under_way(run: Run) -> str:
    found = progress_of(run)
    if found is None:
        return f"{run.name} starting"
    task, step, speed = found
    return f"{run.name} task {task + 1}, step {step}/{run.steps}, {speed:.1f}/s"
