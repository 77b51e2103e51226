"""Checkpoints that can be trusted: written aside and renamed, with a digest that is verified on every load.

A file is one header line (JSON: format, digests, identity of the run, step) and a payload that `torch.load` reads with
`weights_only=True`. The newest two are kept, so that a damaged one never costs more than the steps between them.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch

from utils.config.loop_options import Interval
from utils.errors import RunFailed, UsageError
from utils.files import write_atomically

# Raised when today's code could not continue from a file of yesterday's.
FORMAT = 2
KEPT = 2


class Damaged(Exception):
    """A file that is not what was written."""


class Checkpoints:
    """The checkpoint files of one run folder."""

    def __init__(self, folder: Path, identity: dict[str, Any], every: Interval):
        self.folder, self.every = folder, every
        self.identity = json.loads(json.dumps(identity))
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
        header = {"format": FORMAT, "digest": hashlib.sha256(body).hexdigest(), "step": step, "identity": self.identity}
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
            self.last_step = header["step"]
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
        for path in [*self.paths(), *self.folder.glob(".*.tmp")]:
            path.unlink(missing_ok=True)


def _plain_state(payload: memoryview) -> dict[str, Any]:
    try:
        return torch.load(io.BytesIO(payload), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError:
        raise Damaged("it holds more than tensors and plain data") from None


def verified_payload(path: Path) -> tuple[dict[str, Any], memoryview]:
    """Header and payload of a file whose bytes are those that were written; raises Damaged otherwise."""
    line, _, payload = path.read_bytes().partition(b"\n")
    try:
        header = json.loads(line)
        digest, sealed = header["digest"], header.pop("header_digest")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Damaged("unreadable header") from None
    if header_digest(header) != sealed:
        raise Damaged("the header's digest does not match")
    if hashlib.sha256(payload).hexdigest() != digest:
        raise Damaged("the digest does not match")
    return header, memoryview(payload)


def header_digest(header: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()
