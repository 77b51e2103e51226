"""Show the progress of a sweep: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from tqdm import tqdm

from utils.studies.runs import Run
from utils.tables import duration

BAR_SECONDS, LINE_SECONDS = 1.0, 30.0  # between two updates


class Display:
    def __init__(self, total: int, already: int):
        self.total, self.already = total, already
        self.begin = self.last_update = time.monotonic()
        self.bar = tqdm(total=total, initial=already, unit="run", dynamic_ncols=True) if sys.stderr.isatty() else None

    def say(self, text: str) -> None:
        tqdm.write(text, file=sys.stderr)

    def done(self, run: Run, record: dict[str, Any]) -> None:
        accuracies = ", ".join(f"{name} {result['metrics']['faa']:.2f}" for name, result in record["results"].items())
        self.say(f"done   {run.name}: {accuracies} in {record['wall_seconds']:.0f} s")

    def update(self, done: int, running: list[Run], failed: int) -> None:
        now = time.monotonic()
        if now - self.last_update < (BAR_SECONDS if self.bar else LINE_SECONDS):
            return
        self.last_update = now
        progress = "; ".join(text for run in running if (text := progress_text(run)))
        text = f"{failed} failed; {progress or f'{len(running)} runs starting'}"
        if self.bar:
            self.bar.n = self.already + done
            self.bar.set_postfix_str(text)
            return
        left = (now - self.begin) * (self.total - self.already - done) / done if done else None
        time_left = "?" if left is None else duration(left)
        self.say(f"{self.already + done} of {self.total} done, {time_left} left, {text}")

    def close(self) -> None:
        if self.bar:
            self.bar.close()


def progress_text(run: Run) -> str:
    """Return how far a run has come by the end of its log, empty if it has not trained yet."""
    try:
        event = json.loads((run.folder / "metrics.jsonl").read_bytes().splitlines()[-1])
        return f"{run.name} task {event['task'] + 1}, step {event['step']}/{run.steps}"
    except (OSError, ValueError, KeyError, IndexError):  # not begun, or the line is half written
        return ""


def log_tail(run: Run, count: int = 8) -> str:
    """Return the last lines that a run printed."""
    text = run.log.read_text(errors="replace") if run.log.exists() else ""
    lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-count:] or ["(it is empty)"])
