"""Files that are never half written, and locks that end with the process that holds them."""

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from utils.console import log, repeated_note
from utils.errors import RunLocked, UsageError

LIST_OF_NUMBERS = re.compile(r'\[\n([^][{}"]+)\]')  # a line feed within a string is escaped
LOCK_RETRY_SECONDS = 0.05  # `is_locked` holds a lock for less


@contextmanager
def file_errors(action: str, path: Path, advice: str, kind: type[Exception] = UsageError) -> Iterator[None]:
    """Raise an OSError as another kind of error: `cannot <action> <path>: <reason>; <advice>`."""
    try:
        yield
    except OSError as error:
        raise kind(f"cannot {action} {path}: {error.strerror or error}; {advice}") from error


def reject_links(*paths: Path) -> None:
    """Raise an OSError if one of these is a symbolic link: in a downloaded folder, it may lead anywhere."""
    for path in paths:
        if path.is_symlink():
            raise OSError(f"{path} is a symbolic link, which is not followed; remove it")


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Call `write` on a temporary file beside `path`, flush it to the disk, and rename it to `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON with one entry a line, and a list of numbers on one line."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    text = LIST_OF_NUMBERS.sub(lambda row: f"[{' '.join(row[1].split())}]", text)
    write_atomically(path, lambda file: file.write(text.encode()))


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, whose file names this process; raise RunLocked if another process has it."""
    path = folder / "lock"
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=LOCK_RETRY_SECONDS, poll_interval=LOCK_RETRY_SECONDS / 2)
    except Timeout:
        raise RunLocked(f"{folder.name} is being run by {path.read_text() or 'another process'}") from None
    try:
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        with suppress(OSError):
            os.truncate(path, 0)
        lock.release()


@contextmanager
def waited_lock(path: Path, purpose: str) -> Iterator[None]:
    """Hold the lock file; while another process has it, say so at once and every minute."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        message = f"waiting for another process {purpose}"
        log.info(message)
        with repeated_note(lambda: message):
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of the folder. A killed process leaves the file, but no lock."""
    if not (folder / "lock").exists():
        return False
    try:
        with FileLock(folder / "lock", timeout=0):
            return False
    except OSError as error:  # of a folder that is not ours, if not of a locked one
        return isinstance(error, Timeout)
