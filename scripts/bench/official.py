"""whole runs against the authors' released code, data loading and evaluations included

`--path` is a checkout of the released code, which is not part of this project. Both train DER++ with AdaB2N on the same
random images in the form of Split CIFAR-10 (five tasks), with the same settings and threads, and evaluate the same 24
task sets: all before training, and after every task those seen so far and the next. Our images are decoded again in
every run. Each run is a process of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from scripts.bench.common import CLASSES, TASKS, interleaved, ratio
from scripts.bench.run import TESTS_PER_STEP
from utils.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
BATCH = 10
SETTINGS = {"model": "derpp", "buffer_size": 500, "batch_size": BATCH, "minibatch_size": BATCH, "n_epochs": 1}
SETTINGS |= {"lr": 0.03, "alpha": 0.2, "beta": 0.5, "kappa": 0.7, "lambd": 0.1, "seed": 0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(repetitions=3)
    parser.add_argument("--path", type=Path, required=True, metavar="CHECKOUT", help="folder of the released code")
    parser.add_argument("--python", default=sys.executable, help="Python with what it needs (default: this one)")
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64], help="filters (default 16 64)")
    parser.add_argument("--steps", type=int, default=200, help="steps of each of the five tasks (default 200)")


def measure(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    if not (arguments.path / "utils" / "main.py").exists():
        raise UsageError(f"no utils/main.py in {arguments.path}; give --path the folder of the released code")
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), arguments.steps)
        for width in arguments.widths:
            candidates = {
                "official": partial(run_official, arguments, Path(folder), width),
                "ours": partial(run_ours, arguments, Path(folder), width),
            }
            seconds = interleaved(candidates, arguments.repetitions, warmup=0)
            values: dict[str, Any] = {f"seconds, {name}": float(np.median(times)) for name, times in seconds.items()}
            quartiles = np.quantile(seconds["official"] / seconds["ours"], [0.25, 0.75])
            values |= {"official / ours": ratio(seconds["official"], seconds["ours"])}
            values |= {"its quartiles": {name: float(q) for name, q in zip(("25 %", "75 %"), quartiles, strict=True)}}
            yield f"derpp, adab2n, width {width}, {TASKS * arguments.steps} steps", values


def write_images(folder: Path, steps: int) -> None:
    """Write the same random images as arrays for the released code, and as PNG files for ours."""
    rng, arrays = np.random.default_rng(0), dict[str, Any]()
    for part, per_task in (("train", steps * BATCH), ("test", steps * TESTS_PER_STEP)):
        labels = np.arange(TASKS * per_task) * CLASSES // (TASKS * per_task)
        images = rng.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            path = folder / "images" / part / str(label) / f"{number:06}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path, compress_level=0)
    np.savez(folder / "images.npz", **arrays)


def run_official(arguments: argparse.Namespace, folder: Path, width: int) -> None:
    flags = {"dataset": "seq-cifar10", "nl": "AdaB2N", "nowand": 1, "disable_log": 1, "non_verbose": 1}
    script = Path(__file__).with_name("official_main.py")
    command = [arguments.python, script, width, arguments.threads, folder / "images.npz", *words(SETTINGS | flags)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
    run_process(command, arguments.path, environment)


def run_ours(arguments: argparse.Namespace, folder: Path, width: int) -> None:
    results = folder / "results"
    shutil.rmtree(results, ignore_errors=True)
    flags = {"norm": "adab2n", "dataset": "seq-folder", "n_tasks": TASKS, "image_size": 32, "num_filters": width,
             "base_path": folder / "images", "results_path": results, "num_threads": arguments.threads}  # fmt: skip
    command = [sys.executable, ROOT / "main.py", "--non_verbose", *words(SETTINGS | flags)]
    run_process(command, ROOT, os.environ | {"XDG_CACHE_HOME": str(results / "cache")})


def words(flags: dict[str, Any]) -> list[Any]:
    return [word for name, value in flags.items() for word in (f"--{name}", value)]


def run_process(command: list[Any], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UsageError(f"{command[1]} ended with exit code {done.returncode}: {reason}; run it alone to see more")
