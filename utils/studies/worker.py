"""Train runs in processes of their own, on this machine or on a node.

A server process has torch and the whole framework imported. Each run is a fork of it: no run pays for the imports, and
none shares anything with another. A run whose launcher is gone stops after a checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from io import TextIOWrapper
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

PRELOADED = ["utils.studies.preloaded"]
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
CHECKPOINT_SECONDS = 60.0  # that a run has for its last checkpoint


class Worker:
    """Runs commands of `main.py`, several at a time if asked to."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        self.processes: dict[str, ForkServerProcess] = {}
        # Runs hold the reading end and see when this process is gone: the writing end exists only here.
        self._alive, self._held = self.context.Pipe(duplex=False)

    def start(self, name: str, command: list[str], log: Path, environment: dict[str, str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        arguments = (command, str(log), environment, self._alive)
        process = self.context.Process(target=_child, args=arguments, name=name, daemon=True)
        # Signals are blocked while the server starts, which inherits that: a Ctrl-C would interrupt its imports.
        resource_tracker.ensure_running()  # before, as it unblocks them
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.processes[name] = process

    def finished(self, timeout: float) -> list[tuple[str, int]]:
        """Return names and exit codes of what has ended; the code is negative for a signal that was not handled."""
        wait([process.sentinel for process in self.processes.values()], timeout)
        codes = {name: process.exitcode for name, process in self.processes.items()}
        ended = [(name, code) for name, code in codes.items() if code is not None]
        for name, _ in ended:
            self.processes.pop(name).join()
        return ended

    def terminate(self) -> None:
        """Ask all to stop after a checkpoint."""
        for process in self.processes.values():
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGTERM)

    def close(self) -> None:
        """Stop all after a checkpoint; kill those that take too long for it."""
        self.terminate()
        deadline = time.monotonic() + CHECKPOINT_SECONDS
        while self.processes and time.monotonic() < deadline:
            self.finished(timeout=1.0)
        for process in self.processes.values():
            process.kill()


def _child(command: list[str], log: str, environment: dict[str, str], alive: Connection) -> None:
    os.setsid()  # the terminal sends a Ctrl-C to the launcher only
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    os.environ.update(environment)
    threading.Thread(target=_stop_with_launcher, args=(alive,), daemon=True).start()
    from main import main

    code = main(command)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without waiting for threads


def _stop_with_launcher(alive: Connection) -> None:
    try:
        alive.recv_bytes()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
