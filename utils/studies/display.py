"""Show the progress of a sweep: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sized
from typing import Any

from utils.studies.runs import Run, progress_of
from utils.tables import duration

BAR_SECONDS, LINE_SECONDS = 1.0, 30.0  # between two updates


class Display:
    def __init__(self, total: int, already: int, slots: int, expected: dict[str, float | None]):
        """`expected` are the seconds that each run of the sweep will take, None where unknown."""
        self.total, self.already, self.slots, self.expected = total, already, slots, expected
        self.last_update = time.monotonic()
        self.ended: set[str] = set()
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

    def done(self, run: Run, record: dict[str, Any]) -> None:
        self.ended.add(run.name)
        self.durations.append(record["wall_seconds"])
        accuracies = ", ".join(f"{name} {result['metrics']['faa']:.2f}" for name, result in record["results"].items())
        self.say(f"done   {run.name}: {accuracies} in {record['wall_seconds']:.0f} s")

    def failed(self, run: Run, reason: str, tail: str) -> None:
        self.ended.add(run.name)
        self.say(f"FAILED {run.name}: {reason}; its log, {run.log}, ends\n{tail}")

    def update(self, done: int, running: list[Run], failed: Sized) -> None:
        if time.monotonic() - self.last_update < (BAR_SECONDS if self.bar else LINE_SECONDS):
            return
        self.last_update = time.monotonic()
        progress = "; ".join(text for run in running if (text := progress_text(run)))
        text = f"{len(failed)} failed, {self._time_left()} left; {progress or f'{len(running)} runs starting'}"
        if self.bar:
            self.bar.n = self.already + done
            self.bar.set_postfix_str(text)
        else:
            self.say(f"{self.already + done} of {self.total} done, {text}")

    def _time_left(self) -> str:
        """Return the time by recorded runs; a run without any takes as long as the mean of this sweep."""
        mean = sum(self.durations) / len(self.durations) if self.durations else None
        seconds = [value or mean for name, value in self.expected.items() if name not in self.ended]
        known = [value for value in seconds if value is not None]
        return "?" if len(known) < len(seconds) else duration(sum(known) / self.slots)

    def close(self) -> None:
        if self.bar:
            self.bar.close()


def progress_text(run: Run) -> str:
    """Return how far a run has come, empty if it has not trained yet."""
    if (progress := progress_of(run)) is None:
        return ""
    task, step, speed = progress
    return f"{run.name} task {task + 1}, step {step}/{run.steps}, {speed:.1f}/s"
