"""A list of runs, carried through by an engine until each is done or has failed for good.

Every decision is here: what counts as done, what is tried again, when to stop. Engines only start a run where they
are told to and say with which exit code it ended.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from scripts.reproduce.runs import Run, Runs

ELSEWHERE = 3  # exit code of a run that another process has
USAGE = 2
WAIT_FOR_OTHERS = 2.0  # seconds before looking again at a run that is being run elsewhere


class Engine(Protocol):
    slots: int

    def start(self, run: Run) -> None: ...

    def finished(self, timeout: float) -> list[tuple[str, int | None]]:
        """Names and exit codes; None where the run was lost with its worker or node."""

    def stop(self) -> None:
        """Ask all running ones to stop after a checkpoint; `finished` goes on to report them."""

    def close(self) -> None: ...


@dataclass
class Outcome:
    done: list[str] = field(default_factory=list)  # in this sweep
    failed: dict[str, str] = field(default_factory=dict)  # name: reason
    stopped_by: int | None = None

    @property
    def exit_code(self) -> int:
        return 128 + self.stopped_by if self.stopped_by else int(bool(self.failed))


class Stop:
    """Notes the first SIGINT or SIGTERM; a second SIGINT gives up waiting."""

    def __init__(self):
        self.number: int | None = None

    def __enter__(self) -> Stop:
        self.before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame) -> None:
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number


def sweep(wanted: list[Run], runs: Runs, engine: Engine, *, retries: int, display) -> Outcome:
    outcome = Outcome()
    waiting = deque((0.0, run) for run in wanted)  # with the time before which there is no point in starting it
    running: dict[str, Run] = {}
    attempts: dict[str, int] = {}
    stopping = False
    with Stop() as stop:
        while (waiting and not stop.number) or running:
            if stop.number and not stopping:
                stopping = True
                display.say(f"stopping: {len(running)} runs go on to their next checkpoint")
                engine.stop()
            while waiting and not stop.number and len(running) < engine.slots:
                if (run := _next_startable(waiting)) is None:
                    break
                if runs.record(run) is not None:  # another launcher was faster
                    outcome.done.append(run.name)
                    continue
                if problem := _cannot_start(run, engine):
                    attempts[run.name] = attempts.get(run.name, 0) + 1
                    _retry_or_fail(run, problem, attempts[run.name], retries, waiting, outcome, display)
                else:
                    running[run.name] = run
            if not running and not stop.number:
                time.sleep(0.2)
            for name, code in engine.finished(timeout=0.5):
                run = running.pop(name)
                if runs.record(run) is not None:
                    outcome.done.append(name)
                    display.done(run, runs.record(run))
                elif code == ELSEWHERE:
                    waiting.append((time.monotonic() + WAIT_FOR_OTHERS, run))
                elif not stop.number:
                    attempts[name] = attempts.get(name, 0) + 1
                    reason = "lost with its worker" if code is None else f"exit code {code}"
                    again = 0 if code == USAGE else retries  # bad usage stays bad
                    _retry_or_fail(run, reason, attempts[name], again, waiting, outcome, display)
            display.update(len(outcome.done), list(running.values()), outcome.failed)
    outcome.stopped_by = stop.number
    return outcome


def _next_startable(waiting: deque) -> Run | None:
    now = time.monotonic()
    for _ in range(len(waiting)):
        not_before, run = waiting.popleft()
        if not_before <= now:
            return run
        waiting.append((not_before, run))
    return None


def _cannot_start(run: Run, engine: Engine) -> str | None:
    """Why, if so: a disk without room, say, or a server of processes that was killed. Other runs may do better."""
    try:
        run.failure.unlink(missing_ok=True)
        engine.start(run)
    except (OSError, EOFError) as error:
        return f"cannot be started: {error}"
    return None


def _retry_or_fail(run: Run, reason: str, attempt: int, retries: int, waiting: deque, outcome: Outcome, display):
    if attempt <= retries:
        display.say(f"{run.name}: {reason}; attempt {attempt + 1} of {retries + 1} goes on from its checkpoint")
        waiting.append((0.0, run))
        return
    outcome.failed[run.name] = reason
    display.failed(run, reason, tail(run))
    try:
        run.failure.write_text(f"{reason}\n", encoding="utf-8")
    except OSError as error:
        display.say(f"{run.name}: `status` will not know that it failed: cannot write {run.failure}: {error.strerror}")


def tail(run: Run, lines: int = 8) -> str:
    """The end of what a run printed."""
    try:
        text = run.log.read_bytes()[-8192:].decode(errors="replace")
    except OSError:
        return "  (it left no log)"
    shown = [line for line in text.replace("\r", "\n").splitlines() if line.strip()][-lines:]
    return "\n".join(f"  {line}" for line in shown or ["(it is empty)"])
