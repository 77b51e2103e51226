"""Files that are never half written: temporary file, flush, fsync, rename. And a lock that dies with its holder."""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakSet


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Call `write` on a temporary file beside `path`, then put it in place by one rename."""
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
    _sync_folder(path.parent)


def remove_temporaries(path: Path) -> None:
    """What killed processes left beside `path`. Only for a process that alone may write it."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


ROW = re.compile(r'\[\n([^][{}"]+)\]')  # a list of numbers; no text has a line feed as such


def write_json(path: Path, value: Any) -> None:
    """An entry a line, and a list of numbers on one: a confusion matrix of 100 classes has 100 lines, not 10,000."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    text = ROW.sub(lambda row: f"[{' '.join(row[1].split())}]", text)
    write_atomically(path, lambda file: file.write(text.encode()))


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold the kernel's lock on `path`, waiting for whoever has it; the kernel releases it when a holder dies."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


GLANCE = 0.05  # seconds: `is_held` itself holds a lock for less


class HeldElsewhere(Exception):
    """Somebody else holds the lock; the text says who."""


class OwnedLock:
    """A lock on a folder for the life of a process, with a file beside it that names its owner. Processes that it forks
    do not have it."""

    _all: WeakSet[OwnedLock] = WeakSet()

    def __init__(self, folder: Path):
        self.owner_path = folder / "owner.json"
        self.file = open(folder / "lock", "a")  # noqa: SIM115 (held open: closing it releases the lock)
        self._all.add(self)
        if not (self._lock() or (time.sleep(GLANCE) or self._lock())):
            self.file.close()
            raise HeldElsewhere(self._owner())
        write_json(self.owner_path, {"host": socket.gethostname(), "pid": os.getpid()})

    def _lock(self) -> bool:
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @staticmethod
    def is_held(folder: Path) -> bool:
        """Whether somebody has it just now. An owner who was killed leaves the file with the name, but no lock."""
        if not (folder / "owner.json").exists():
            return False
        try:
            with open(folder / "lock") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _owner(self) -> str:
        try:
            owner = json.loads(self.owner_path.read_text())
            return f"process {owner['pid']} on {owner['host']}"
        except (OSError, ValueError, KeyError):
            return "another process"

    def release(self) -> None:
        self.owner_path.unlink(missing_ok=True)
        self.file.close()

    @classmethod
    def let_go_of_all(cls) -> None:
        """In a forked process, which might outlive the owner and would hold the lock on."""
        for lock in cls._all:
            lock.file.close()


os.register_at_fork(after_in_child=OwnedLock.let_go_of_all)
