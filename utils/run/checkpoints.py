"""Checkpoints that can be trusted: written aside and renamed, with a digest that is verified on every load.

A file is one header line (JSON: format, digests, identity of the run, its code, step) and a payload that `torch.load`
reads with `weights_only=True`. The newest two are kept, so that a damaged one never costs more than the steps between.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from utils.config.loop_options import Interval
from utils.errors import RunFailed, UsageError
from utils.files import write_atomically
from utils.run.sources import changed_sources, shortened

# Raised when today's code could not continue from a file of yesterday's.
FORMAT = 4
KEPT = 2


class Damaged(Exception):
    """A file that is not what was written."""


class Checkpoints:
    """The checkpoint files of one run folder.

    An attempt is a training from the first step to the last, over all the processes that it takes. The first has number
    1; a --rerun of a finished run has the next.
    """

    def __init__(self, folder: Path, identity: dict[str, Any], sources: dict[str, str], every: Interval):
        self.folder, self.identity, self.sources, self.every = folder, identity, sources, every
        self.attempt = {"number": 1, "rerun": False}
        self.code_changes: list[dict[str, Any]] = []  # where in the run the code became another, if that was accepted
        self.last_step, self.last_time = 0, time.monotonic()

    def paths(self) -> list[Path]:
        """Newest first."""
        own = (path for path in self.folder.glob("checkpoint-*.pt") if re.fullmatch(r"checkpoint-\d{9,}", path.stem))
        return sorted(own, key=lambda path: int(path.stem.split("-")[1]), reverse=True)

    def due(self, step: int) -> bool:
        if self.every.steps:
            return step - self.last_step >= self.every.steps
        return time.monotonic() - self.last_time >= self.every.seconds

    def save(self, step: int, state: dict[str, Any]) -> None:
        path = self.folder / f"checkpoint-{step:09d}.pt"
        payload = io.BytesIO()
        torch.save(state, payload)
        body = payload.getbuffer()
        header = {
            "format": FORMAT,
            "digest": hashlib.sha256(body).hexdigest(),
            "step": step,
            "identity": self.identity,
            "sources": self.sources,
            "attempt": self.attempt,
            "code_changes": self.code_changes,
        }
        line = json.dumps(header | {"header_digest": header_digest(header)}).encode() + b"\n"
        try:
            write_atomically(path, lambda file: (file.write(line), file.write(body)))
            verified_payload(path)
        except Damaged as error:
            path.unlink()
            raise RunFailed(f"{path} was not written as it should be ({error}): is the disk sound?") from error
        except OSError as error:
            raise RunFailed(
                f"cannot write {path}: {error.strerror}; earlier checkpoints are intact, "
                "make room and give the same command again to go on"
            ) from error
        for old in self.paths()[KEPT:]:
            old.unlink()
        self.last_step, self.last_time = step, time.monotonic()

    def take_up(self, *, after: int, rerun: bool, accept: bool, restart: bool) -> dict[str, Any] | None:
        """The state of an attempt that was interrupted; None: this one starts from the beginning.

        `after` is the number of the attempt that the finished record is of, 0 if there is none. A checkpoint of other
        code stops the command, unless it is accepted or given up for a new start.
        """
        self.attempt = {"number": after + 1, "rerun": rerun}
        newest = self._newest_header()
        changed = changed_sources(newest["sources"], self.sources) if newest else []
        if rerun and (newest is None or changed or newest["attempt"] != self.attempt):
            return self.remove()
        if changed and restart:
            print(f"note: starts over, its code has changed: {shortened(changed)}", file=sys.stderr)
            return self.remove()
        if changed and not accept:
            raise UsageError(
                f"this run was interrupted at step {newest['step']}, and its code has changed since: "
                f"{shortened(changed)}; --rerun starts over, --accept_changed_code goes on with today's code"
            )
        state = self.load()
        if changed and state is not None:
            self.code_changes = [*self.code_changes, {"step": self.last_step, "files": changed}]
        return state

    def _newest_header(self) -> dict[str, Any] | None:
        """Of the newest file of this run whose header is sound, without its payload."""
        for path in self.paths():
            with suppress(OSError, Damaged), open(path, "rb") as file:
                header = verified_header(file.readline())
                if header["format"] == FORMAT and header["identity"] == self.identity:
                    return header
        return None

    def interrupted_after(self, attempt: int) -> int | None:
        """The step that a later attempt has come to."""
        newest = self._newest_header()
        return newest["step"] if newest and newest["attempt"]["number"] > attempt else None

    def leftovers(self) -> list[Path]:
        return [*self.paths(), *self.folder.glob(".*.tmp")]

    def load(self) -> dict[str, Any] | None:
        """The state of the newest sound checkpoint; damaged ones are named and set aside."""
        for path in self.paths():
            try:
                header, payload = verified_payload(path)
                self._refuse_strangers(path, header)
                state = _plain_state(payload)
            except OSError as error:
                raise UsageError(f"cannot read {path}: {error.strerror}; remove it, or --rerun") from error
            except Damaged as error:
                aside = path.with_suffix(".damaged")
                path.replace(aside)
                print(f"warning: {path} is damaged ({error}); set aside as {aside.name}", file=sys.stderr)
                continue
            self.last_step, self.attempt, self.code_changes = header["step"], header["attempt"], header["code_changes"]
            return state
        return None

    def _refuse_strangers(self, path: Path, header: dict[str, Any]) -> None:
        if header["format"] != FORMAT:
            raise UsageError(
                f"{path} has format {header['format']}, this code reads {FORMAT}: --rerun starts over, "
                "or continue with the code that wrote it"
            )
        theirs, ours = header["identity"], self.identity
        differing = [name for name in sorted({*theirs, *ours}) if theirs.get(name) != ours.get(name)]
        if differing or path.stem != f"checkpoint-{header['step']:09d}":
            what = ", ".join(f"{name} {theirs.get(name)} instead of {ours.get(name)}" for name in differing)
            raise UsageError(f"{path} is of another run or step ({what or header['step']}): remove it, or --rerun")

    def remove(self) -> None:
        for path in self.leftovers():
            path.unlink(missing_ok=True)
        self.last_step, self.code_changes = 0, []


def _plain_state(payload: memoryview) -> dict[str, Any]:
    try:
        return torch.load(io.BytesIO(payload), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError:
        raise Damaged("it holds more than tensors and plain data") from None


def verified_payload(path: Path) -> tuple[dict[str, Any], memoryview]:
    """Header and payload of a file whose bytes are those that were written; raises Damaged otherwise."""
    line, _, payload = path.read_bytes().partition(b"\n")
    header = verified_header(line)
    if hashlib.sha256(payload).hexdigest() != header["digest"]:
        raise Damaged("the digest does not match")
    return header, memoryview(payload)


def verified_header(line: bytes) -> dict[str, Any]:
    try:
        header = json.loads(line)
        sealed, _ = header.pop("header_digest"), header["digest"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Damaged("unreadable header") from None
    if header_digest(header) != sealed:
        raise Damaged("the header's digest does not match")
    return header


def header_digest(header: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()
