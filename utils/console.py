"""What a command prints: results on standard output; errors, notes and warnings on standard error.

Notes and warnings go through the logger `adab2n`: `logging.getLogger("adab2n").setLevel("ERROR")` silences them.
"""

import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, NoReturn

from utils.errors import RunFailed, RunLocked, UsageError

NOTE_SECONDS = 60.0
# Errors that a command reports in one line.
EXIT_CODES: dict[type[Exception], int] = {
    UsageError: 2, RunFailed: 1, RunLocked: 3, OSError: 2, MemoryError: 1, ImportError: 2,
}  # fmt: skip
ERRORS = tuple(EXIT_CODES)
# Each ends a run after a checkpoint. Slurm users choose SIGUSR1; a closed terminal sends SIGHUP, a CPU limit SIGXCPU.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU)


class StderrHandler(logging.Handler):
    """Writes `note: ...` and `warning: ...` to whatever standard error is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        kind = "warning" if record.levelno >= logging.WARNING else "note"
        print(f"{kind}: {record.getMessage()}", file=sys.stderr, flush=True)


log = logging.getLogger("adab2n")
log.setLevel(logging.INFO)
log.propagate = False
log.addHandler(StderrHandler())


@contextmanager
def repeated_note(text: Callable[[], str]) -> Iterator[None]:
    """Log a note once a minute while something takes long."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(NOTE_SECONDS):
            log.info(text())

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def in_notebook() -> bool:
    return "ipykernel" in sys.modules


class SafeStream:
    """A stream whose errors are ignored: a run goes on when its terminal is closed or the reader of a pipe is gone."""

    def __init__(self, stream: Any):
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.stream.flush()


def begin() -> None:
    """Escape what the encoding of the streams lacks, and make standard error safe; the first call of a main program."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.stderr = SafeStream(sys.stderr or io.StringIO())  # None if it was closed


def reporting_errors(main: Callable[..., int]) -> Callable[..., int]:
    """Let a main function report its errors in one line and return their exit code."""

    @wraps(main)
    def wrapped(*arguments: Any) -> int:
        try:
            return main(*arguments)
        except ERRORS as error:
            return complain(error)

    return wrapped


def run_command(main: Callable[[], int]) -> NoReturn:
    """Run the main function of a program and exit with its code."""
    begin()
    sys.exit(end(main()))


def end(code: int) -> int:
    """Flush standard output and return the exit code, 1 if the disk is full; the last call of a main program."""
    try:
        print(end="", flush=True)
    except OSError as error:  # a closed pipe is ignored
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more when it exits
        if not isinstance(error, BrokenPipeError) and not code:  # otherwise, an error has been reported
            print_error(f"cannot write to standard output: {error.strerror}; records are kept")
            return 1
    return code


def complain(error: BaseException, about: str = "") -> int:
    """Print an error in one line and return the exit code of the command."""
    if isinstance(error, BrokenPipeError):  # the reader of a pipe has seen enough
        return 0
    text = str(error)
    if isinstance(error, MemoryError) or "failed to map segment" in text:  # the latter when torch is imported
        text = f"out of memory ({text or 'MemoryError'}); free some, or raise the limit"
    print_error(f"{about}{text}")
    return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))


def print_error(message: object) -> None:
    """Print one line on standard error."""
    print(f"error: {' '.join(str(message).splitlines())}", file=sys.stderr)
