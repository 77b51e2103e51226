"""One run in a process of its own: what every launcher ends up calling.

A server process has torch and the whole framework imported; each run is a fork of it, so that no run pays for the
imports and none shares anything with another. A run whose launcher is gone stops after a checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path

from utils.process import STOPS, keep_streams

PRELOADED = ["scripts.reproduce.preloaded"]

MAY_STOP = 60.0  # seconds that a run has for its last checkpoint


class Worker:
    """Runs commands of `main.py`, several at a time if asked to."""

    def __init__(self):
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        self.processes: dict[str, multiprocessing.Process] = {}
        # Whoever holds the reading end sees when this process is gone: the writing end exists only here.
        self._alive, self._held = self.context.Pipe(duplex=False)

    def start(self, name: str, command: list[str], log: Path, environment: dict[str, str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        process = self.context.Process(target=_child, args=(command, str(log), environment, self._alive), name=name,
                                       daemon=True)  # fmt: skip
        # The server inherits what is blocked: a Ctrl-C is not for it, and would tear the imports it begins with.
        resource_tracker.ensure_running()  # unblocks as it starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.processes[name] = process

    def finished(self, timeout: float) -> list[tuple[str, int]]:
        """Names and exit codes of what has ended; negative for a signal that could not be handled."""
        by_sentinel = {process.sentinel: name for name, process in self.processes.items()}
        ended = []
        for sentinel in wait(list(by_sentinel), timeout):
            process = self.processes.pop(by_sentinel[sentinel])
            process.join()
            ended.append((by_sentinel[sentinel], process.exitcode))
        return ended

    def close(self) -> None:
        """Leave nobody behind: whoever still runs, because the launcher failed, may save and must go."""
        self.terminate()
        patience = time.monotonic() + MAY_STOP
        while self.processes and time.monotonic() < patience:
            self.finished(timeout=1.0)
        for process in self.processes.values():
            process.kill()

    def terminate(self) -> None:
        """Ask all to stop after a checkpoint."""
        for process in self.processes.values():
            if process.is_alive():
                os.kill(process.pid, signal.SIGTERM)


def _child(command: list[str], log: str, environment: dict[str, str], alive: Connection) -> None:
    os.setsid()  # a Ctrl-C in the terminal is the launcher's affair
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    keep_streams()
    os.environ.update(environment)
    threading.Thread(target=_stop_with_launcher, args=(alive,), daemon=True).start()
    from main import main

    code = main(command)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # nothing is left to do, and no thread to wait for


def _stop_with_launcher(alive: Connection) -> None:
    try:
        alive.recv_bytes()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
