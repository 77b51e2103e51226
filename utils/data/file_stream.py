"""A task stream from image files: decoded when their turn comes, by worker processes ahead of it, and not kept.

The order of the images is that of `TensorStream`, and workers draw nothing: they bring every file to one stored form,
which the buffer has too. So results do not depend on how many there are. All that is random comes later, on the device.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.utils.data import DataLoader

from utils.data.random import generator
from utils.data.stream import StreamSpec, concatenated, picked
from utils.device import send_together, to_device
from utils.errors import RunFailed, UsageError
from utils.process import STOPS
from utils.step import Batch

# Images that a worker decodes and hands over at once, through shared memory, of which containers often have 64 MB:
# four workers with two pieces each of 256x256 pixels take 50.
PIECE = 32
MOST_WORKERS = 4  # unless more are asked for
CPU = torch.device("cpu")
DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Files:
    """Names of image files, as bytes in one array, which forked workers share as long as nobody writes to it."""

    names: np.ndarray  # (N,)
    labels: np.ndarray  # (N,) int64

    def without_classes(self, count: int) -> Files:
        """The first so many classes are gone: labels count from the one after them."""
        return Files(self.names, self.labels - count)


@dataclass(frozen=True)
class FileStream:
    """Training and test files, and where in them each task lies, one after the other."""

    spec: StreamSpec
    train_files: Files
    test_files: Files
    train_ranges: tuple[tuple[int, int], ...]
    test_ranges: tuple[tuple[int, int], ...]
    seed: int
    batch_size: int
    decode: Callable[[bytes], np.ndarray]  # a file's name to uint8 pixels of the spec's shape
    num_workers: int
    device: torch.device = CPU
    together: bool = False  # all tasks are trained as one; tests stay apart

    @property
    def train_sizes(self) -> list[int]:
        sizes = [stop - start for start, stop in self.train_ranges]
        return [sum(sizes)] if self.together else sizes

    def to(self, device: torch.device) -> FileStream:
        return replace(self, device=device)

    def part(self, first: int, stop: int) -> FileStream:
        spec = self.spec.part(first, stop)
        gone = self.spec.n_classes - spec.n_classes
        return replace(
            self,
            spec=spec,
            train_files=self.train_files.without_classes(gone),
            test_files=self.test_files.without_classes(gone),
            train_ranges=self.train_ranges[first:stop],
            test_ranges=self.test_ranges[first:stop],
        )

    def merged(self) -> FileStream:
        return replace(self, together=True)

    def batches(self, task: int, epoch: int, first: int, joined: Batch | None = None) -> Iterator[Batch]:
        start, stop = self._trained(task)
        own, more = stop - start, 0 if joined is None else len(joined)
        order = generator(self.seed, "shuffle", task, epoch).permutation(own + more)
        wanted = split_into(order[first * self.batch_size :], self.batch_size)
        read = self._read(self.train_files, [start + index[index < own] for index in wanted], task)
        if more == 0:
            yield from read
            return
        for index, batch in zip(wanted, read, strict=True):
            yield with_joined(batch, joined, index, own)

    def in_order(self, task: int, size: int) -> Iterator[Batch]:
        return self._read(self.train_files, split_into(np.arange(*self._trained(task)), size), task)

    def test(self, task: int, size: int) -> Iterator[Batch]:
        return self._read(self.test_files, split_into(np.arange(*self.test_ranges[task]), size), task)

    def _trained(self, task: int) -> tuple[int, int]:
        return (self.train_ranges[0][0], self.train_ranges[-1][1]) if self.together else self.train_ranges[task]

    def _read(self, files: Files, wanted: Sequence[np.ndarray], task: int) -> Iterator[Batch]:
        """A batch of each of these groups of files."""
        pieces = [np.array_split(index, max(1, -(-len(index) // PIECE))) for index in wanted]
        decoded = self._decoded(files.names, [piece for group in pieces for piece in group])
        for index, group in zip(wanted, pieces, strict=True):
            labels, tasks = files.labels[index], np.full(len(index), task)
            sent = send_together([labels, tasks], self.device)
            yield Batch(self._together(decoded, len(group)), *sent, labels, tasks)

    def _together(self, decoded: Iterator[torch.Tensor], count: int) -> torch.Tensor:
        """The next so many pieces, on the device."""
        found = [next(decoded).to(self.device, non_blocking=True) for _ in range(count)]
        return found[0] if count == 1 else torch.cat(found)

    def _decoded(self, names: np.ndarray, pieces: list[np.ndarray]) -> Iterator[torch.Tensor]:
        """The images of every piece, on the host. Workers end with the iterator; a single piece is not worth one."""
        workers = min(self.num_workers, len(pieces)) if len(pieces) > 1 else 0
        loader = DataLoader(
            Decoding(names, self.decode, self.spec.image_shape),
            sampler=pieces,
            batch_size=None,
            num_workers=workers,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_obey_parent,
            multiprocessing_context="fork" if workers else None,
            generator=torch.Generator(),  # it draws a seed for workers, which must not be from torch's own
        )
        with _unheard_by_workers():
            found = iter(loader)
        for _ in pieces:
            images = _next(found)
            if isinstance(images, str):
                raise UsageError(images)
            yield images


class Decoding:
    """What the loader asks for a piece: its images, or in one line why there are none."""

    def __init__(self, names: np.ndarray, decode: Callable[[bytes], np.ndarray], shape: tuple[int, int, int]):
        self.names, self.decode, self.shape = names, decode, shape

    def __getitem__(self, index: np.ndarray) -> torch.Tensor | str:
        images = torch.empty((len(index), *self.shape), dtype=torch.uint8)
        try:
            for image, name in zip(images.numpy(), self.names[index], strict=True):
                image[:] = self.decode(name)
        except UsageError as error:  # the loader would make many lines of it
            return str(error)
        return images


def default_workers() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_WORKERS, cores)


def split_into(index: np.ndarray, size: int) -> list[np.ndarray]:
    return [index[start : start + size] for start in range(0, len(index), size)]


def with_joined(batch: Batch, joined: Batch, index: np.ndarray, own: int) -> Batch:
    """In the order of `index`: the samples of a task's own, which `batch` has, and those of `joined`, which follow."""
    is_own, more = index < own, index[index >= own] - own
    both = concatenated([batch, picked(joined, more, to_device(more, batch.labels.device))])
    place = np.where(is_own, is_own.cumsum(), is_own.sum() + (~is_own).cumsum()) - 1
    return picked(both, place, to_device(place, batch.labels.device))


# --- worker processes -------------------------------------------------------------------------------------------------


@contextmanager
def _unheard_by_workers() -> Iterator[None]:
    """For whoever starts workers: signals that stop a run are for the run, which then ends its workers; they inherit
    that these are blocked. And no worker's end interrupts a step: it shows where its images are waited for."""
    is_main = threading.current_thread() is threading.main_thread()
    at_end_of_child = signal.getsignal(signal.SIGCHLD)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGCHLD, at_end_of_child)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _obey_parent(_worker: int) -> None:
    """End with it, at once were it killed, and when it says so."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    threading.Thread(target=_end_if_told, args=(os.getppid(),), daemon=True).start()


def _end_if_told(parent: int) -> None:
    """Terminated by its parent, that is, as Python does at its exit with whatever is left; others are not obeyed."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)


def _next(found: Iterator[torch.Tensor | str]) -> torch.Tensor | str:
    try:
        return next(found)
    except (RuntimeError, ConnectionError, EOFError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if isinstance(error, RuntimeError) and not re.search("exited unexpectedly|killed by signal", reason):
            raise
        raise RunFailed(
            f"a worker process that decodes images has died ({reason}), perhaps of too little memory; fewer "
            "--num_workers may help"
        ) from error
