"""seconds and peak memory of the first and the second start on trees of images

The trees are made here, by default in the sizes of Tiny-ImageNet and Mini-ImageNet. A start ends with the first batch;
the peak is also given after a pass through all images, which touches every one. `--tree` measures a tree of your own,
and `--checkout` another version of the code.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

CHECKOUT = Path(__file__).resolve().parents[2]
DISTINCT = 100  # contents of image files, which are repeated: decoding takes as long as if all were different
MEGABYTE = 2**20

# Run in the checkout by a process of its own, so that the peak is this start's.
START = r"""
import json, re, sys, time
from itertools import chain
from math import prod
begin = time.perf_counter()
import torch
from utils.config.resolve import resolve
from utils.run.build import StreamBuilder

def peak():
    with open("/proc/self/status") as status:
        return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1])

options = {"model": "sgd", "non_verbose": True, "seed": 1, **json.loads(sys.argv[1])}
config, imported = resolve(options), peak()
stream = StreamBuilder(config).stream(torch.device("cpu"))
next(iter(stream.batches(0, 0, 0)))
result = {"seconds": time.perf_counter() - begin, "imports": imported, "start": peak()}
for task in range(stream.spec.n_tasks):
    for batch in chain(stream.in_order(task, 256), stream.test(task, 256)):
        batch.images.sum()
sizes = sum(stream.spec.train_sizes) + sum(stream.spec.test_sizes)
print(json.dumps(result | {"whole pass": peak(), "data": sizes * prod(stream.spec.image_shape)}))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(repetitions=1)
    sizes = "classes, training and test images of each, pixels (default: those of Tiny-ImageNet and Mini-ImageNet)"
    parser.add_argument(
        "--sizes", type=sizes_from, nargs="*", default=[(200, 500, 50, 64), (100, 500, 100, 84)], help=sizes
    )
    parser.add_argument("--tree", action="append", default=[], metavar="DATASET=PATH", help="measure this tree too")
    parser.add_argument("--checkout", type=Path, default=CHECKOUT, help="folder of the code (default: this one)")


def sizes_from(text: str) -> tuple[int, ...]:
    classes, train, test, pixels = map(int, text.split(","))
    return classes, train, test, pixels


def measure(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Start twice on every tree, the first time without a cache."""
    with tempfile.TemporaryDirectory(prefix="bench-loading-") as folder:
        trees = {tree: dict(zip(("dataset", "base_path"), tree.split("=", 1), strict=True)) for tree in arguments.tree}
        for sizes in arguments.sizes:
            name = "{}x({}+{}) images of {} pixels".format(*sizes)
            write_tree(Path(folder, name), *sizes)
            trees[name] = {"dataset": "seq-folder", "base_path": str(Path(folder, name))}
            trees[name] |= {"image_size": sizes[3], "n_tasks": sizes[0] // 2}
        for name, options in trees.items():
            options |= {"cache_path": str(Path(folder, "cache"))}
            yield name, {start: run_start(arguments.checkout, options) for start in ("first start", "second start")}


def run_start(checkout: Path, options: dict[str, Any]) -> dict[str, float]:
    command = [sys.executable, "-c", START, json.dumps(options)]
    done = json.loads(subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True).stdout)
    peaks = {f"{name}, MB": done[name] / MEGABYTE for name in ("imports", "start", "whole pass")}
    times = {f"{name} / data": (done[name] - done["imports"]) / done["data"] for name in ("start", "whole pass")}
    return {"seconds": done["seconds"], **peaks, **times}


def write_tree(root: Path, classes: int, train: int, test: int, pixels: int) -> None:
    from PIL import Image

    draw, contents = np.random.default_rng(0), []
    for _ in range(DISTINCT):
        blocks = Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((pixels, pixels))
        blocks.save(file := BytesIO(), format="JPEG", quality=90)
        contents.append(file.getvalue())
    for label, (part, count) in product(range(classes), (("train", train), ("test", test))):
        folder = root / part / f"n{label:08d}"
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / f"{number}.JPEG").write_bytes(contents[(label + number) % DISTINCT])
