"""Run a list of runs with an engine until each is done or has failed for good.

Every decision is here: what counts as done, what is tried again, when to stop. Engines only start runs, report their
exit codes, and stop what still runs.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from tqdm import tqdm

from utils.files import is_locked, write_atomically
from utils.run.records import entries_of
from utils.run.signals import Signals
from utils.studies.runs import Run, Runs
from utils.tables import count_of

USAGE, LOCKED = 2, 3  # exit codes of main.py: bad usage, and a run that another process has
DISAGREES = "trained again for a missing outcome, it has other results than record.old.json, its earlier record"


class Engine(Protocol):
    slots: int

    def start(self, run: Run) -> None: ...

    def finished(self, timeout: float) -> Sequence[tuple[str, int | None]]:
        """Return names and exit codes of runs that have ended; None for a run that was lost with its worker."""

    def close(self) -> None:
        """Stop what still runs after a checkpoint, wait for it, and release what the engine holds."""


class Display:
    """A progress bar; without a terminal it is printed every half minute."""

    def __init__(self, total: int, already: int):
        self.already, seconds = already, 1.0 if sys.stderr.isatty() else 30.0
        self.bar = tqdm(total=total, initial=already, unit="run", dynamic_ncols=True, mininterval=seconds, miniters=0)

    def say(self, text: str) -> None:
        tqdm.write(text, file=sys.stderr)

    def done(self, run: Run, record: dict[str, Any]) -> None:
        accuracies = ", ".join(f"{name} {result['metrics']['faa']:.2f}" for name, result in record["results"].items())
        self.say(f"done   {run.name}: {accuracies} in {record['wall_seconds']:.0f} s")

    def update(self, done: int, running: list[Run], failed: int) -> None:
        progress = "; ".join(text for run in running if (text := progress_text(run)))
        text = progress or f"{count_of(len(running), 'run')} starting"
        self.bar.set_postfix_str(f"{failed} failed; {text}", refresh=False)
        self.bar.update(self.already + done - self.bar.n)

    def close(self) -> None:
        self.bar.close()


def progress_text(run: Run) -> str:
    """Return how far a run has come by the end of its log, empty if it has not trained yet."""
    with suppress(OSError, ValueError, LookupError, TypeError):  # not begun, or the line is half written
        path = run.folder / "metrics.jsonl"
        event = {} if path.is_symlink() else json.loads(path.read_bytes().splitlines()[-1])
        return f"{run.name} task {event['task'] + 1}, step {event['step']}/{run.steps}"
    return ""


def log_tail(run: Run, count: int = 8) -> str:
    """Return the last lines that a run printed."""
    text = run.log.read_text(errors="replace") if run.log.exists() and not run.log.is_symlink() else ""
    lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-count:])


@dataclass
class Outcome:
    done: list[str] = field(default_factory=list)  # in this sweep
    failed: dict[str, str] = field(default_factory=dict)  # reason by name
    stopped_by: int | None = None

    @property
    def exit_code(self) -> int:
        return 128 + self.stopped_by if self.stopped_by else int(bool(self.failed))


def sweep(wanted: list[Run], runs: Runs, engine: Engine, *, retries: int, display: Display) -> Outcome:
    """Run what is wanted and close the engine and the display."""
    return Sweep(runs, engine, retries, display, {run.name: run for run in wanted}).run()


@dataclass
class Sweep:
    runs: Runs
    engine: Engine
    retries: int
    display: Display
    waiting: dict[str, Run]
    running: dict[str, Run] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)
    outcome: Outcome = field(default_factory=Outcome)

    def run(self) -> Outcome:
        """The first of the signals in STOPS stops all runs after a checkpoint; a second SIGINT quits at once."""
        with Signals() as signals, signals.held():
            try:
                while (self.waiting or self.running) and signals.received is None:
                    self._start_runs()
                    if not self.running:
                        time.sleep(0.2)
                    for name, code in self.engine.finished(timeout=0.5):
                        self._end(self.running.pop(name), code)
                    self.display.update(len(self.outcome.done), list(self.running.values()), len(self.outcome.failed))
                if signals.received is not None:
                    self.display.say(f"stopping after the next checkpoint of {count_of(len(self.running), 'run')}")
            finally:
                self.engine.close()
                self.display.close()
        self.outcome.stopped_by = signals.received
        self.outcome.done += [name for name, run in self.running.items() if self.runs.is_done(run)]
        return self.outcome

    def _start_runs(self) -> None:
        for name, run in list(self.waiting.items()):
            if len(self.running) == self.engine.slots:
                return
            if is_locked(run.folder):  # another process has it
                continue
            del self.waiting[name]
            if self.runs.is_done(run):  # another launcher was faster
                self.outcome.done.append(name)
                continue
            try:
                run.failure.unlink(missing_ok=True)
                self.engine.start(run.as_rerun() if self.runs.lacks_outcomes(run) else run)
                self.running[name] = run
            except (OSError, EOFError) as error:  # a full disk, say, or a server of processes that was killed
                self._retry_or_fail(run, f"cannot be started: {error}", self.retries)

    def _end(self, run: Run, code: int | None) -> None:
        record = self.runs.record(run) if self.runs.is_done(run) else None
        if record is not None and agrees_with_old_record(run, record):
            self.outcome.done.append(run.name)
            self.display.done(run, record)
        elif record is not None:
            self._retry_or_fail(run, DISAGREES, retries=0)
        elif code == LOCKED:
            self.waiting[run.name] = run
        else:
            reason = "ended unfinished" if code is None else f"exit code {code}"
            self._retry_or_fail(run, reason, 0 if code == USAGE else self.retries)

    def _retry_or_fail(self, run: Run, reason: str, retries: int) -> None:
        self.attempts[run.name] += 1
        if (attempts := self.attempts[run.name]) <= retries:
            self.display.say(f"{run.name}: {reason}; attempt {attempts + 1} of {retries + 1} resumes its checkpoint")
            self.waiting[run.name] = run
            return
        self.outcome.failed[run.name] = reason
        self.display.say(f"FAILED {run.name}: {reason}; its log, {run.log}, ends\n{log_tail(run)}")
        with suppress(OSError):  # a full disk may be why it failed
            write_atomically(run.failure, lambda file: file.write(f"{reason}\n".encode()))


def agrees_with_old_record(run: Run, record: dict[str, Any]) -> bool:
    """Return whether a run that was trained again has the results of its earlier record; it may have more of them."""
    path = run.folder / "record.old.json"
    old = json.loads(path.read_bytes()) if path.exists() else record
    return entries_of(old, record)["results"] == old["results"]
