"""resident memory by data set and buffer size, against their size as uint8

Every row is a process of its own that builds the data set and the buffer, takes a few steps, and reports by how much
its resident size grew over the same process with next to no data.
"""

from __future__ import annotations

import json
import subprocess
import sys

from utils.tables import aligned

FEW_STEPS = 20
DATA = {"CIFAR (60,000 x 32 x 32)": (32, 60_000), "Mini-ImageNet (60,000 x 84 x 84)": (84, 60_000)}
CHILD = """
import json, sys
from scripts.bench.memory import grown
print(json.dumps(grown(*map(int, sys.argv[1:]))))
"""


def add_arguments(parser) -> None:
    parser.add_argument("--buffers", type=int, nargs="+", default=[500, 2000, 5000])


def resident_bytes() -> int:
    import os

    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grown(size: int, images: int, buffer_size: int) -> dict:
    """Resident bytes after a few steps on `images` images with a full buffer."""
    import torch

    from scripts.bench.step import OneLayer
    from scripts.bench.workloads import cut
    from utils.config.arguments import resolve
    from utils.run.build import build_method
    from utils.run.training import Training

    torch.set_num_threads(1)
    config = resolve({"model": "er_ace", "dataset": "seq-cifar10", "buffer_size": buffer_size, "batch_size": 10})
    stream = noise(size, images, config)
    method = build_method(config, stream.spec, OneLayer(3 * size * size), torch.device("cpu"))
    method.buffer.images.fill_(1)  # as a full buffer: untouched memory is not resident
    Training(config, cut(stream, 0, FEW_STEPS), method).train_epoch()
    held = len(stream.train_data) + len(stream.test_data)
    return {"resident": resident_bytes(), "data": held * 3 * size**2, "buffer": buffer_size * 3 * size**2}


def noise(size: int, images: int, config):
    """Put into the order of tasks as a data set's images are, which are let go after it."""
    import numpy as np

    from datasets.dataset import in_task_order
    from utils.data.augment import Crop, Flip
    from utils.data.stream import StreamSpec, TensorStream, ranges

    train, test = images * 5 // 6 // 10 * 10, images // 6 // 10 * 10
    spec = StreamSpec("noise", "class", 5, 10, (3, size, size), (0.5,) * 3, (0.25,) * 3, (Crop(4), Flip()),
                      (train // 5,) * 5, (test // 5,) * 5)  # fmt: skip
    rng = np.random.default_rng(0)

    def raw(count: int):
        return rng.integers(0, 256, (count, 3, size, size), dtype=np.uint8), np.arange(count) % 10

    raw_train, raw_test = raw(train), raw(test)  # both are there at once, as they are after reading
    splits = in_task_order(*raw_train, spec, spec.train_sizes), in_task_order(*raw_test, spec, spec.test_sizes)
    where = ranges(spec.train_sizes), ranges(spec.test_sizes)
    return TensorStream(spec, *splits, *where, config.seed, config.batch_size)


def measured(*numbers: int) -> dict:
    words = [sys.executable, "-c", CHILD, *map(str, numbers)]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def run(arguments) -> dict:
    rows = [["data set, buffer", "as uint8, MB", "grown by, MB", "ratio"]]
    results = {}
    for title, (size, images) in DATA.items():
        for buffer in arguments.buffers:
            least, full = measured(size, 120, 10), measured(size, images, buffer)
            uint8 = full["data"] + full["buffer"] - least["data"] - least["buffer"]
            growth = full["resident"] - least["resident"]
            name = f"{title}, {buffer}"
            results[name] = {"uint8": uint8, "growth": growth, "ratio": growth / uint8}
            rows.append([name, f"{uint8 / 1e6:.1f}", f"{growth / 1e6:.1f}", f"{growth / uint8:.3f}"])
    print(aligned(rows), end="\n\n")
    return results
