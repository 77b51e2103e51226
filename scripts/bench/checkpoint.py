"""what checkpoints cost: one save, as a share of the wall time between two at the default interval

The network of the paper, a buffer of 5,000 CIFAR images with logits: the largest checkpoint of the online tables.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from scripts.bench import workloads
from utils.config.arguments import resolve
from utils.run.checkpoints import Checkpoints
from utils.tables import aligned


def add_arguments(parser) -> None:
    parser.add_argument("--buffer_size", type=int, default=5000)
    parser.add_argument("--width", type=int, default=64)


def run(arguments) -> dict:
    options = {"model": "derpp", "norm": "adab2n", "buffer_size": arguments.buffer_size}
    training = workloads.training_in_second_task(num_filters=arguments.width, **options)
    interval = resolve({"model": "derpp", "dataset": "seq-cifar10"}).checkpoint_every
    seconds, size = [], 0
    with tempfile.TemporaryDirectory(dir=".") as folder:
        checkpoints = Checkpoints(Path(folder), {}, {}, interval)
        for step in range(1, arguments.repetitions + 1):
            start = time.perf_counter()
            checkpoints.save(step, training.state_dict())
            seconds.append(time.perf_counter() - start)
        size = checkpoints.paths()[0].stat().st_size
    save = float(np.median(seconds))
    share = save / interval.seconds
    rows = [
        ["checkpoint", ""],
        ["size, MB", f"{size / 1e6:.1f}"],
        ["one save with verification, s", f"{save:.3f}"],
        ["slowest, s", f"{max(seconds):.3f}"],
        [f"share of the wall time, every {interval}", f"{100 * share:.3f} %"],
    ]
    print(aligned(rows), end="\n\n")
    return {"size": size, "seconds": save, "slowest": max(seconds), "share": share}
