"""The edges of a process: streams that are closed, full or cannot spell, and signals before there is a run to stop.

For main programs: `begin` first of all, before torch is imported, which takes seconds, and `end` last. Importing this
changes nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper

STOPS = (signal.SIGINT, signal.SIGTERM)
STOPPED = "stopped by {}; the same command goes on from the last checkpoint"


def begin() -> None:
    open_missing()
    keep_streams()
    for number in STOPS:
        signal.signal(number, _quit)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def end(code: int) -> int:
    """The exit code, once all that was printed is out. A reader that left early has seen enough; a disk that is full
    is told."""
    sys.__stdout__.flush()
    lost = sys.__stdout__.lost
    if lost is None or isinstance(lost, BrokenPipeError):
        return code
    complain(f"cannot write to standard output: {lost.strerror}; records are kept")
    return code or 1


def say_stopped(by: object) -> None:
    """No error: it was asked for."""
    print(STOPPED.format(by), file=sys.stderr)


def complain(what: object) -> None:
    """One line on standard error, whatever names it holds."""
    print(f"error: {' '.join(str(what).splitlines())}", file=sys.stderr)


def open_missing() -> None:
    """A closed stream is /dev/null: the next file to be opened would take its number, and get what is printed."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (open as long as the process)


def keep_streams() -> None:
    sys.stdout = sys.__stdout__ = Kept.in_place_of(sys.stdout)
    sys.stderr = sys.__stderr__ = Kept.in_place_of(sys.stderr)


class Kept(TextIOWrapper):
    """Standard output or error that never ends a run: what its encoding lacks is escaped, and what it cannot write is
    lost. The first error is noted."""

    lost: OSError | None = None

    @classmethod
    def in_place_of(cls, stream: TextIOWrapper) -> Kept:
        kept = {name: getattr(stream, name) for name in ("encoding", "line_buffering", "write_through")}
        return cls(stream.detach(), errors="backslashreplace", **kept)

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self.lost = self.lost or error
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self.lost = self.lost or error


def _quit(number: int, _frame) -> None:
    """At once: there is nothing to lose yet, and an exception might be caught by what is just being imported."""
    line = f"{STOPPED.format(signal.Signals(number).name)}\n"
    try:
        os.write(2, line.encode())
    finally:
        os._exit(128 + number)
