"""A task stream from image files: worker processes decode them ahead of time, and nothing is held in memory.

The order of the images is that of `TensorStream`. Workers draw nothing random: they bring every file to one stored
form, which the buffer holds too, so results do not depend on their number.
"""

import atexit
import re
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch.utils.data import DataLoader

from utils.data.stream import Stream, concatenated, index_batch
from utils.device import send_together
from utils.errors import RunFailed, UsageError
from utils.step import Batch

# Images that a worker decodes and sends at once, through shared memory. Containers often have only 64 MB of it: four
# workers with two pieces each of 256x256 pixels take 50.
PIECE = 32
MOST_NAMED = 10  # damaged images in a message
ADVICE = "repair or remove {}"


class DamagedImage(UsageError):
    """An image that cannot be read. The message is its path with the reason."""


def damage_error(damaged: Sequence[str], advice: str) -> UsageError:
    """Return an error that names damaged images, each with its reason. `advice` says what to do with {}: them."""
    count = len(damaged)
    what, them = ("the image", "it") if count == 1 else (f"{count} images:", "them")
    more = f" and {count - MOST_NAMED} more" if count > MOST_NAMED else ""
    return UsageError(f"cannot read {what} {', '.join(damaged[:MOST_NAMED])}{more}; {advice.format(them)}")


@dataclass(frozen=True)
class Files:
    """Image files: names as bytes in one array, which forked workers share as long as nobody writes to it."""

    names: np.ndarray  # (N,)
    labels: np.ndarray  # (N,) int64


@dataclass(frozen=True)
class FileStream(Stream[Files]):
    """A stream of image files."""

    decode: Callable[[bytes], np.ndarray]  # from a file's name to uint8 pixels of the spec's shape
    num_workers: int  # 0: the run's own process decodes
    device: torch.device = field(default=torch.device("cpu"), kw_only=True)
    advice: str = field(default=ADVICE, kw_only=True)  # what to do with a damaged image
    damaged: list[str] | None = field(default=None, kw_only=True)  # if a list, collects damaged images, which are black

    @property
    def train_labels(self) -> np.ndarray:
        return self.train_data.labels

    def to(self, device: torch.device) -> Self:
        return replace(self, device=device)

    def batches(self, task: int, epoch: int, first: int, extra: Batch | None = None) -> Iterator[Batch]:
        start, stop = self._train_range(task)
        own = stop - start
        order = self.epoch_order(task, epoch, own + (0 if extra is None else len(extra)))
        groups = split_into(order[first * self.batch_size :], self.batch_size)
        batches = self._read(self.train_data, [start + index[index < own] for index in groups], task)
        for index, batch in zip(groups, batches, strict=True):
            yield batch if extra is None else merge_extra(batch, extra, index, own)

    def in_order(self, task: int, size: int) -> Iterator[Batch]:
        return self._read(self.train_data, split_into(np.arange(*self._train_range(task)), size), task)

    def test(self, task: int, size: int) -> Iterator[Batch]:
        return self._read(self.test_data, split_into(np.arange(*self.test_ranges[task]), size), task)

    def _train_range(self, task: int) -> tuple[int, int]:
        return (self.train_ranges[0][0], self.train_ranges[-1][1]) if self.together else self.train_ranges[task]

    def _read(self, files: Files, groups: Sequence[np.ndarray], task: int) -> Iterator[Batch]:
        """Yield one batch for each group of file indices."""
        pieces = [np.array_split(index, max(1, -(-len(index) // PIECE))) for index in groups]
        decoded = self._decode(files.names, [piece for group in pieces for piece in group])
        for index, group in zip(groups, pieces, strict=True):
            images = [next(decoded).to(self.device, non_blocking=True) for _ in group]
            labels_host, tasks_host = files.labels[index], np.full(len(index), task)
            labels, tasks = send_together([labels_host, tasks_host], self.device)
            yield Batch(images[0] if len(images) == 1 else torch.cat(images), labels, tasks, labels_host, tasks_host)

    def _decode(self, names: np.ndarray, pieces: list[np.ndarray]) -> Iterator[torch.Tensor]:
        """Yield the images of every piece, on the host."""

        def decode_piece(index: np.ndarray) -> tuple[torch.Tensor, list[str]]:
            """Return images and a list of damaged ones, which are black."""
            images, damaged = torch.zeros((len(index), *self.spec.image_shape), dtype=torch.uint8), []
            for image, name in zip(images.numpy(), names[index], strict=True):
                try:
                    image[:] = self.decode(name)
                except UsageError as error:  # raised in a worker, it would get a traceback of many lines
                    damaged.append(str(error))
            return images, damaged

        pin_memory = self.device.type == "cuda"
        with closing(map_in_workers(decode_piece, pieces, self.num_workers, pin_memory=pin_memory)) as decoded:
            for images, damaged in decoded:
                if damaged and self.damaged is None:
                    raise damage_error(damaged, self.advice)
                if self.damaged is not None:
                    self.damaged.extend(damaged)
                yield images


def map_in_workers(
    work: Callable[[Any], Any], pieces: Sequence[Any], num_workers: int, *, pin_memory: bool = False
) -> Generator[Any]:
    """Yield `work(piece)` of every piece in order. Workers end with the iterator; one piece needs none."""
    workers = min(num_workers, len(pieces)) if len(pieces) > 1 else 0
    loader: DataLoader[Any] = DataLoader(
        pieces,  # type: ignore[arg-type]
        batch_size=None,
        collate_fn=work,
        num_workers=workers,
        pin_memory=pin_memory,
        worker_init_fn=_ignore_stop_signals,
        multiprocessing_context="fork" if workers else None,
        generator=torch.Generator(),  # for the workers' seeds: torch's own generator must not be used
    )
    handler = signal.getsignal(signal.SIGCHLD)
    iterator: Any = iter(loader)
    if workers:
        # If an exception leaves workers running, Python would terminate them, which they ignore, and wait.
        atexit.register(iterator._shutdown_workers)
        if threading.current_thread() is threading.main_thread():
            # Torch's handler would raise in the middle of a step. A dead worker is reported when its piece is read.
            signal.signal(signal.SIGCHLD, handler)
    try:
        yield from iterator
    except (RuntimeError, ConnectionError, EOFError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if isinstance(error, RuntimeError) and not re.search("exited unexpectedly|killed by signal", reason):
            raise
        raise RunFailed(f"a worker process died ({reason}), maybe out of memory; use fewer --num_workers") from error
    finally:
        if workers:
            iterator._shutdown_workers()
            atexit.unregister(iterator._shutdown_workers)


def split_into(index: np.ndarray, size: int) -> list[np.ndarray]:
    return [index[start : start + size] for start in range(0, len(index), size)]


def merge_extra(batch: Batch, extra: Batch, index: np.ndarray, own: int) -> Batch:
    """Return the samples at `index`: below `own` they are the batch's, in its order; extra sample k has own + k."""
    is_extra = index >= own
    both = concatenated([batch, index_batch(extra, index[is_extra] - own)])
    place = np.argsort(np.argsort(is_extra, kind="stable"))  # in `both`, where the task's own samples come first
    return index_batch(both, place)


def _ignore_stop_signals(_worker: int) -> None:
    """Signals that stop a run may reach all its processes. The run itself ends its workers, when it has stopped."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
