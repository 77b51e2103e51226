"""Streams from files: batch by batch what a stream in memory of the same images gives, whatever the number of workers.

Reading a file is replaced by looking its number up in a tensor, so that every pixel is known."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import make_spec, make_stream
from test_stream import extra_samples, same
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from utils.data import file_stream
from utils.data.file_stream import DamagedImage, Files, FileStream
from utils.errors import RunFailed, UsageError

SPEC = make_spec(n_tasks=3, n_classes=6, train_sizes=(10, 7, 12), test_sizes=(5, 6, 4))
MEMORY = make_stream(SPEC)
WORKERS = [0, 1, 2]


def look_up(name: bytes) -> np.ndarray:
    part, number = name.split(b"/")
    return {b"train": MEMORY.train_data, b"test": MEMORY.test_data}[part].images[int(number)].numpy()


def files(part: str, labels: np.ndarray) -> Files:
    return Files(np.array([f"{part}/{number}".encode() for number in range(len(labels))]), labels)


def stream(num_workers=0, decode=look_up) -> FileStream:
    data = files("train", MEMORY.train_data.labels_host), files("test", MEMORY.test_data.labels_host)
    where = MEMORY.train_ranges, MEMORY.test_ranges
    return FileStream(SPEC, *data, *where, MEMORY.seed, MEMORY.batch_size, decode, num_workers)


def check_equal(result, expected):
    result, expected = list(result), list(expected)
    assert len(result) == len(expected)
    assert all(same(*pair) for pair in zip(result, expected, strict=True))
    for batch in result:
        assert (batch.images.dtype, batch.labels.dtype, batch.tasks.dtype) == (torch.uint8, torch.int64, torch.int64)


# --- as in memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
def test_every_batch_is_that_of_a_stream_in_memory(workers):
    mine = stream(workers)
    assert mine.train_sizes == MEMORY.train_sizes
    check_equal(mine.batches(2, 1, 0), MEMORY.batches(2, 1, 0))
    check_equal(mine.batches(2, 1, 2, extra_samples(6)), MEMORY.batches(2, 1, 2, extra_samples(6)))


@pytest.mark.parametrize(
    "joined", [None, extra_samples(0), extra_samples(1), extra_samples(30)], ids=["none", "0", "1", "30"]
)
@pytest.mark.parametrize("change", [lambda s: s, lambda s: s.as_single_task(), lambda s: s.first_tasks(2)])
def test_joined_merged_and_part(joined, change):
    """Of 30 that join 7, some batches have none of the task's own."""
    mine, theirs = change(stream()), change(MEMORY)
    assert mine.train_sizes == theirs.train_sizes
    assert mine.spec == theirs.spec
    for task in range(len(mine.train_sizes)):
        whole = list(theirs.batches(task, 3, 0, joined))
        for first in range(len(whole) + 1):
            check_equal(mine.batches(task, 3, first, joined), whole[first:])
        check_equal(mine.in_order(task, 5), theirs.in_order(task, 5))
    for task in range(mine.spec.n_tasks):
        check_equal(mine.test(task, 5), theirs.test(task, 5))


def test_large_batches_are_decoded_in_pieces(monkeypatch):
    asked, original = [], file_stream.map_in_workers
    monkeypatch.setattr(file_stream, "PIECE", 3)
    monkeypatch.setattr(
        file_stream, "map_in_workers", lambda *a, **k: asked.extend(map(len, a[1])) or original(*a, **k)
    )
    check_equal(stream().in_order(2, 8), MEMORY.in_order(2, 8))
    assert asked == [3, 3, 2, 2, 2]


def test_torch_s_own_randomness_is_left_alone():
    before = torch.get_rng_state()
    for workers in WORKERS:
        list(stream(workers).batches(0, 0, 0))
    assert torch.equal(torch.get_rng_state(), before)


# --- workers ----------------------------------------------------------------------------------------------------


def children() -> list[int]:
    result = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children").read_text().split()
    return [int(pid) for pid in result]


def test_workers_end_with_the_iterator_and_ignore_what_stops_a_run():
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)}
    before = children()
    batches = stream(2).batches(2, 0, 0)
    first = [next(batches), next(batches)]  # one of each worker: both have started
    workers = [pid for pid in children() if pid not in before]
    assert len(workers) == 2
    for pid in workers:  # as Ctrl-C in a terminal and batch systems do, which signal all processes
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    check_equal([*first, *batches], MEMORY.batches(2, 0, 0))
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    assert gone(workers)
    batches = stream(2).batches(2, 0, 0)
    next(batches)
    workers = [pid for pid in children() if pid not in before]
    batches.close()
    assert gone(workers)


def gone(pids) -> bool:
    """Whether these children end."""
    deadline = time.monotonic() + 10
    while set(pids) & set(children()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not set(pids) & set(children())


EXIT_WITH_AN_OPEN_ITERATOR = """
import numpy as np, torch
from utils.data.file_stream import DamagedImage, Files, FileStream
from utils.data.stream import StreamSpec
spec = StreamSpec("x", "class", 1, 1, (1, 1, 1), (0.0,), (1.0,), (), (80,), (80,))
files = Files(np.array([b"x"] * 80), np.zeros(80, dtype=np.int64))
where = ((0, 80),)
batches = FileStream(spec, files, files, where, where, 0, 40, lambda name: np.zeros((1, 1, 1), np.uint8), 2).test(0, 40)
next(batches)
raise SystemExit(3)
"""


def test_python_exits_though_an_iterator_is_open():
    finished = subprocess.run([sys.executable, "-c", EXIT_WITH_AN_OPEN_ITERATOR], timeout=60, check=False)
    assert finished.returncode == 3


def refusing(name):
    if name == b"train/25":
        raise DamagedImage("train/25 (cut off)")
    return look_up(name)


def dying(name):
    if name == b"train/25":
        os.kill(os.getpid(), signal.SIGKILL)
    return look_up(name)


@pytest.mark.parametrize("workers", WORKERS)
def test_file_that_cannot_be_read_is_one_line_when_its_turn_comes(workers):
    order = [int(image[0, 0, 0]) for batch in MEMORY.batches(2, 0, 0) for image in batch.images]
    result = []
    with pytest.raises(UsageError, match=r"^cannot read the image train/25 \(cut off\); repair or remove it$"):
        result.extend(stream(workers, refusing).batches(2, 0, 0))
    assert len(result) == order.index(25) // MEMORY.batch_size


def test_worker_that_dies_fails_the_run_in_one_line(monkeypatch):
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))  # seconds, instead of 5
    with pytest.raises(RunFailed, match="worker process") as caught:
        list(stream(1, dying).batches(2, 0, 0))
    assert "\n" not in str(caught.value)
    assert "--num_workers" in str(caught.value)
