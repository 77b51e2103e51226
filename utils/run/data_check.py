"""`--check_data`: what a data set found, and what it looks like, before anything is trained on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from utils.config.arguments import Config, resolve
from utils.config.registry import DATASETS
from utils.data.stream import Stream, StreamSpec
from utils.errors import UsageError
from utils.files import write_atomically
from utils.run.build import Data, told_if_too_large
from utils.tables import aligned

SHOWN = 6  # images of a class on the contact sheet
SMALLEST, LARGEST = 32, 96  # pixels that an image is shown with at least, up to whole multiples, and at most
CHUNK = 256


def check_data(explicit: dict) -> int:
    for other in ("eval_only", "dry_run"):
        if other in explicit:
            raise UsageError(f"--check_data and --{other} contradict each other: give one")
    config = resolve({"model": "sgd"} | explicit)  # the data are the same for all
    data = Data(config)
    with told_if_too_large("the data"):
        found = look_at(data.dataset.stream(config, data.spec))
    names = data.dataset.names(config)
    label_of = data.dataset.stream_labels(config, data.spec.n_classes)
    path = Path(config.results_path) / "data" / f"{config.dataset}.png"
    print(_report(config, data, found, names, label_of))
    write_sheet(path, data.spec.image_shape, [(names[k], found.shown[label_of[k]]) for k in range(len(names))])
    print(f"contact sheet: {path}")
    return 0


@dataclass(frozen=True)
class Found:
    """By label in the stream."""

    train: np.ndarray  # numbers of images
    test: np.ndarray
    shown: list[list[np.ndarray]]  # some training images, (C, H, W)


def look_at(stream: Stream) -> Found:
    """Goes through all images. Where tasks share them: through one task's, and a class is shown as the first tasks see
    one image of it."""
    spec = stream.spec
    counts = {part: np.zeros(spec.n_classes, dtype=int) for part in ("train", "test")}
    shown: list[list[np.ndarray]] = [[] for _ in range(spec.n_classes)]
    for task in range(min(spec.n_tasks, SHOWN) if spec.shared_images else spec.n_tasks):
        limit = min(task + 1, SHOWN) if spec.is_domain else SHOWN
        for part, batches in (("train", stream.in_order(task, CHUNK)), ("test", stream.test(task, CHUNK))):
            for batch in batches:
                if task == 0 or not spec.shared_images:
                    counts[part] += np.bincount(batch.labels_host, minlength=spec.n_classes)
                if part == "train":
                    _show_some(batch.images, batch.labels_host, limit, shown)
    return Found(counts["train"], counts["test"], shown)


def _show_some(images: torch.Tensor, labels: np.ndarray, limit: int, shown: list[list[np.ndarray]]) -> None:
    for label in np.unique(labels):
        missing = max(limit - len(shown[label]), 0)
        shown[label] += [_small(images[index].cpu().numpy()) for index in np.flatnonzero(labels == label)[:missing]]


def _report(config: Config, data: Data, found: Found, names: Sequence[str], label_of: np.ndarray) -> str:
    spec = data.spec
    channels, height, width = spec.image_shape
    tested = "testing" if config.validation is None else "validation"
    tasks = {label: str(task + 1) for task in range(spec.n_tasks) for label in spec.classes_of(task)}
    rows = [["class", "task", "training", tested]]
    for name, label in zip(names, label_of, strict=True):
        task = "all" if spec.is_domain else tasks[label]
        rows.append([name, task, str(found.train[label]), str(found.test[label])])
    return "\n".join(
        [
            f"{config.dataset}: {DATASETS.get(config.dataset).help}",
            f"source: {data.dataset.source(config)}",
            f"images: {width}x{height} pixels, {channels} channel{'s' if channels > 1 else ''}; "
            f"{found.train.sum()} for training, {found.test.sum()} for {tested}",
            f"classes: {spec.n_classes}, {_in_tasks(spec)}",
            f"fingerprint: {spec.fingerprint}",
            "",
            aligned(rows),
        ]
    )


def _in_tasks(spec: StreamSpec) -> str:
    if spec.is_domain:
        return f"all of them in each of {spec.n_tasks} tasks"
    sizes = [len(spec.classes_of(task)) for task in range(spec.n_tasks)]
    return f"{spec.n_tasks} tasks of {sizes[0] if len({*sizes}) == 1 else ', '.join(map(str, sizes))}"


# --- the contact sheet ------------------------------------------------------------------------------------------------


def write_sheet(path: Path, image_shape: Sequence[int], rows: list[tuple[str, list[np.ndarray]]]) -> None:
    """A row of images with its name for every class, in as many columns of rows as make the sheet about square."""
    from PIL import Image, ImageDraw

    height, width = _cell(*image_shape[1:])
    names = [name.encode("ascii", "replace").decode()[:16] for name, _ in rows]  # what the font has
    margin = 8 + 7 * max(map(len, names))
    row_width, row_height = margin + SHOWN * (width + 2), height + 2
    columns = max(1, round(math.sqrt(len(rows) * row_height / row_width)))
    per_column = math.ceil(len(rows) / columns)
    sheet = Image.new("RGB", (columns * row_width, per_column * row_height), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (name, (_, images)) in enumerate(zip(names, rows, strict=True)):
        left, top = number // per_column * row_width, number % per_column * row_height
        draw.text((left + 4, top + height // 2 - 6), name, fill="black")
        for place, image in enumerate(images):
            sheet.paste(_picture(image, (height, width)), (left + margin + place * (width + 2), top))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: sheet.save(file, format="PNG"))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; set --results_path") from error


def _picture(image: np.ndarray, cell: tuple[int, int]):
    from PIL import Image

    shades = image if len(image) == 3 else image[[0, 0, 0]]
    picture = Image.fromarray(np.ascontiguousarray(shades.transpose(1, 2, 0)))
    kind = Image.Resampling.NEAREST if cell[1] >= picture.width else Image.Resampling.BILINEAR
    return picture.resize((cell[1], cell[0]), kind)


def _small(image: np.ndarray) -> np.ndarray:
    """A copy that is no larger than it is shown: large images of hundreds of classes, or the batches that they are
    part of, would fill the memory."""
    cell = _cell(*image.shape[1:])
    if cell[1] >= image.shape[2]:
        return image.copy()
    return np.asarray(_picture(image, cell)).transpose(2, 0, 1)


def _cell(height: int, width: int) -> tuple[int, int]:
    """The size that images are shown in."""
    side = max(height, width)
    if side < SMALLEST:
        times = -(-SMALLEST // side)
        return height * times, width * times
    share = min(1.0, LARGEST / side)
    return max(1, round(height * share)), max(1, round(width * share))
