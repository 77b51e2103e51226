"""Checkpoints: a line with the SHA-256 of the rest, a line of JSON (format, step, identity, code), torch's payload.

The newest two are kept, so that a damaged one never costs more than the steps between them.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import time
from pathlib import Path
from typing import Any

import torch

from utils.config.loop_options import Interval
from utils.console import log
from utils.errors import RunFailed, UsageError
from utils.files import file_errors, write_atomically
from utils.run.code_digest import changed_files, shortened

FORMAT = 7
KEPT = 2


class Checkpoints:
    """The checkpoint files of one run folder."""

    def __init__(self, folder: Path, identity: dict[str, Any], sources: dict[str, str], every: Interval):
        self.folder, self.identity, self.sources, self.every = folder, identity, sources, every
        self.code_changes: list[dict[str, Any]] = []  # steps at which a run went on with other code
        self.last_step, self.last_time = 0, time.monotonic()

    def paths(self) -> list[Path]:
        """Return the files, newest first."""
        return sorted(self.folder.glob("checkpoint-*.pt"), reverse=True)

    def due(self, step: int) -> bool:
        if self.every.steps:
            return step - self.last_step >= self.every.steps
        return time.monotonic() - self.last_time >= (self.every.seconds or 0.0)

    def save(self, step: int, state: dict[str, Any]) -> None:
        path = self.folder / f"checkpoint-{step:09d}.pt"
        payload = io.BytesIO()
        torch.save(state, payload)
        about = {"format": FORMAT, "step": step, "identity": self.identity, "sources": self.sources}
        header = json.dumps(about | {"code_changes": self.code_changes}).encode() + b"\n"
        parts = (f"{digest(header, payload.getbuffer())}\n".encode(), header, payload.getbuffer())
        with file_errors("write", path, "make room and give the same command again to go on", RunFailed):
            write_atomically(path, lambda file: file.writelines(parts))
        for old in self.paths()[KEPT:]:
            old.unlink()
        self.last_step, self.last_time = step, time.monotonic()

    def load(self, *, accept_changed_code: bool = False) -> dict[str, Any] | None:
        """Return the state of the newest sound checkpoint, or None; damaged files are named and set aside.

        Raises UsageError for a checkpoint of another run, and for one of other code unless that is accepted.
        """
        for path in self.paths():
            with file_errors("read", path, "remove it, or --rerun"):
                try:
                    header, payload = verified_payload(path)
                    state: dict[str, Any] = torch.load(io.BytesIO(payload), weights_only=True, map_location="cpu")
                except pickle.UnpicklingError as error:
                    aside = path.replace(path.with_suffix(".damaged"))
                    log.warning(f"{path} is damaged ({str(error).splitlines()[0]}); set aside as {aside.name}")
                    continue
            theirs, ours = header["identity"] | {"step": header["step"]}, self.identity | {"step": int(path.stem[11:])}
            if differing := [name for name in sorted({*theirs, *ours}) if theirs.get(name) != ours.get(name)]:
                what = ", ".join(f"{name} {theirs.get(name)} instead of {ours.get(name)}" for name in differing)
                raise UsageError(f"{path} is of another run or step ({what}): remove it, or --rerun")
            changed = changed_files(header["sources"], self.sources)
            if changed and not accept_changed_code:
                what = f"this run was interrupted at step {header['step']}, and its code has changed since"
                advice = "--rerun starts over, --accept_changed_code goes on with today's code"
                raise UsageError(f"{what}: {shortened(changed)}; {advice}")
            self.last_step, self.code_changes = header["step"], header["code_changes"]
            if changed:
                self.code_changes.append({"step": self.last_step, "files": changed})
            return state
        return None

    def remove(self) -> None:
        """Remove all checkpoints, and what killed processes left of files in this folder."""
        for path in (*self.paths(), *self.folder.glob(".*.tmp")):
            path.unlink(missing_ok=True)
        self.last_step, self.code_changes = 0, []


def digest(header: bytes, payload: bytes | memoryview) -> str:
    content = hashlib.sha256(header)
    content.update(payload)
    return content.hexdigest()


def verified_payload(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return header and payload of a file; raise UnpicklingError unless its bytes are those that were written."""
    with open(path, "rb") as file:
        expected, header, payload = file.readline(), file.readline(), file.read()
    if expected != f"{digest(header, payload)}\n".encode():
        raise pickle.UnpicklingError("its digest does not match")
    about = json.loads(header)
    if about["format"] != FORMAT:
        raise UsageError(f"{path} has format {about['format']}, this code reads {FORMAT}; --rerun starts over")
    return about, payload
