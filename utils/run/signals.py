"""The signals in `STOPS` end a run after a checkpoint; a second SIGINT quits at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from utils.console import STOPS, in_notebook


class Interrupted(KeyboardInterrupt):
    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Signals:
    """`with Signals() as signals`, and `with signals.held()` where a signal is only noted, in `received`."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._is_holding = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            numbers = [number for number in STOPS if not (is_nohup and number == signal.SIGHUP)]
            self._before = {number: signal.signal(number, self._handle) for number in numbers}
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            if in_notebook():  # whose process has other work
                raise Interrupted(number)
            os._exit(128 + number)
        self.received = number
        if not self._is_holding:
            raise Interrupted(number)

    @contextmanager
    def held(self) -> Iterator[None]:
        before, self._is_holding = self._is_holding, True
        try:
            yield
        finally:
            self._is_holding = before

    def check(self) -> None:
        if self.received is not None:
            raise Interrupted(self.received)
