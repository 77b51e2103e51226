"""`--check_data`: print the facts of a data set and write a contact sheet, before anything is trained on it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from utils.config.registry import DATASETS
from utils.config.resolve import resolve
from utils.data.file_stream import FileStream, damage_error
from utils.data.stream import Stream
from utils.errors import UsageError
from utils.files import file_errors
from utils.run.build import StreamBuilder, oom_as_usage_error
from utils.tables import aligned

IMAGES_PER_CLASS = 6  # on the contact sheet
MIN_SIDE, MAX_SIDE = 32, 96  # pixels of an image on the contact sheet
CHUNK = 256


def check_data(explicit: dict[str, Any]) -> int:
    for other in ("eval_only", "dry_run"):
        if other in explicit:
            raise UsageError(f"--check_data and --{other} contradict each other; give one")
    config = resolve({"model": "sgd"} | explicit)  # the data do not depend on the method
    data = StreamBuilder(config)
    spec, names = data.spec, data.dataset.names(config)
    with oom_as_usage_error("the data"):
        stream = data.dataset.stream(config, spec)
        if isinstance(stream, FileStream):
            stream = replace(stream, damaged=[])
        n_train, n_test, images = count_and_collect(stream)
        if isinstance(stream, FileStream) and stream.damaged:
            raise damage_error(stream.damaged, stream.advice)
    labels = data.dataset.stream_labels(config, spec.n_classes)  # by position in `names`
    tested = "testing" if config.validation is None else "validation"
    task_of = {label: str(task + 1) for task in range(spec.n_tasks) for label in spec.classes_of(task)}
    rows = [["class", "task", "training", tested]]
    for name, label in zip(names, labels, strict=True):
        rows.append([name, "all" if spec.is_domain else task_of[label], str(n_train[label]), str(n_test[label])])
    if domains := data.dataset.task_names(config):
        sizes_of = zip(domains, spec.train_sizes, spec.test_sizes, strict=False)  # --stop_after leaves some out
        domain_rows = [[name, str(task), str(n), str(m)] for task, (name, n, m) in enumerate(sizes_of, 1)]
        rows = [["domain", "task", "training", tested], *domain_rows, [""] * 4, *rows]
    channels, height, width = spec.image_shape
    sizes = [str(len(spec.classes_of(task))) for task in range(spec.n_tasks)]
    tasks = f"{spec.n_tasks} tasks of {sizes[0] if len({*sizes}) == 1 else ', '.join(sizes)}"
    if spec.is_domain:
        tasks = f"all of them in each of {spec.n_tasks} tasks"
    path = Path(config.results_path) / "data" / f"{config.dataset}.png"
    per_row = write_sheet(path, [images[label] for label in labels])
    print(
        f"{config.dataset}: {DATASETS.get(config.dataset).help}\n"
        f"source: {data.dataset.source(config)}\n"
        f"images: {width}x{height} pixels, {channels} channel{'s' if channels > 1 else ''}; "
        f"{n_train.sum()} for training, {n_test.sum()} for {tested}\n"
        f"classes: {spec.n_classes}, {tasks}\n"
        f"fingerprint: {spec.fingerprint}\n\n{aligned(rows)}\n"
        f"contact sheet: {path} ({per_row} classes per row, in the order of the table)"
    )
    return 0


def count_and_collect(stream: Stream) -> tuple[np.ndarray, np.ndarray, list[list[torch.Tensor]]]:
    """Return the numbers of training and test images of every label, and some training images (C, H, W) of it.

    Tasks that share their images are counted once; a class is shown as the first tasks transform it.
    """
    spec = stream.spec
    n_train, n_test = np.zeros((2, spec.n_classes), dtype=int)
    images: list[list[torch.Tensor]] = [[] for _ in range(spec.n_classes)]
    for task in range(min(spec.n_tasks, IMAGES_PER_CLASS) if spec.shared_images else spec.n_tasks):
        is_counted = task == 0 or not spec.shared_images
        limit = min(task + 1, IMAGES_PER_CLASS) if spec.is_domain else IMAGES_PER_CLASS
        for batch in stream.in_order(task, CHUNK):
            n_train += is_counted * np.bincount(batch.labels_host, minlength=spec.n_classes)
            for label in np.unique(batch.labels_host):
                missing = max(limit - len(images[label]), 0)
                for index in np.flatnonzero(batch.labels_host == label)[:missing]:
                    images[label].append(resize_for_sheet(batch.images[int(index)]))
        for batch in stream.test(task, CHUNK):
            n_test += is_counted * np.bincount(batch.labels_host, minlength=spec.n_classes)
    return n_train, n_test, images


def resize_for_sheet(image: torch.Tensor) -> torch.Tensor:
    """Return a float copy in [0, 1]: small images enlarged by a whole factor, large ones reduced."""
    pixels, side = image[None].float().cpu() / 255, max(image.shape[1:])
    if side > MAX_SIDE:
        size = [max(1, round(length * MAX_SIDE / side)) for length in image.shape[1:]]
        return F.interpolate(pixels, size, mode="bilinear", antialias=True)[0]
    return F.interpolate(pixels, scale_factor=math.ceil(MIN_SIDE / side))[0]


def write_sheet(path: Path, images: list[list[torch.Tensor]]) -> int:
    """Write the images of every class side by side; return the number of classes per row, for a square sheet."""
    from torchvision.utils import make_grid, save_image

    blank = torch.ones_like(next(image for of_class in images for image in of_class))
    cells = [image for of_class in images for image in [*of_class, *[blank] * (IMAGES_PER_CLASS - len(of_class))]]
    per_row = max(1, round(math.sqrt(len(images) / IMAGES_PER_CLASS)))
    grid = make_grid([cell if len(cell) == 3 else cell[:1] for cell in cells], nrow=per_row * IMAGES_PER_CLASS)
    with file_errors("write", path, "set --results_path"):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_image(grid, path)
    return per_row
