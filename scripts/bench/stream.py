"""images/s of a stream from files against a bare DataLoader over the same files

JPEG files of photographs' size and of 224x224 pixels are made in a temporary folder. Both read all of them once in
batches, with the same number of workers, and bring them to the stored form: the bare loader with torchvision's
transforms, and without the care that is taken here of rotated, transparent and damaged images. The network's part of a
step is not measured. The bound is a ratio of 0.9.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from scripts.bench.timing import interleaved, ratio
from utils.config.arguments import resolve
from utils.run.build import Data
from utils.tables import aligned

SIZES = {"224x224": (224, 224), "500x375": (375, 500)}
STORED = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(256), transforms.PILToTensor()])


def add_arguments(parser) -> None:
    parser.set_defaults(repetitions=11)
    parser.add_argument("--images", type=int, default=256, help="files that are read in a repetition (default 256)")
    parser.add_argument("--batch_size", type=int, default=32, help="(default 32)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="--num_workers (default 0 1 2)")


def run(arguments) -> dict:
    rows, results = [["files, workers", "images/s", "bare", "ratio"]], {}
    with tempfile.TemporaryDirectory() as folder:
        for name, size in SIZES.items():
            make_files(Path(folder, name), arguments.images, size)
            for workers in arguments.workers:
                title = f"{name}, {workers}"
                results[title] = found = compared(Path(folder, name), workers, arguments)
                spread = f"{found['ratio']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"
                rows.append([title, f"{found['images_per_s']:.0f}", f"{found['bare_per_s']:.0f}", spread])
    print(aligned(rows), end="\n\n")
    return results


def compared(root: Path, workers: int, arguments) -> dict:
    candidates = {
        "stream": streamed(root, workers, arguments.batch_size),
        "bare": bare(root, workers, arguments.batch_size),
    }
    seconds = interleaved(candidates, arguments.repetitions, warmup=1)
    per_second = {name: arguments.images / float(np.median(times)) for name, times in seconds.items()}
    return {
        "images_per_s": per_second["stream"],
        "bare_per_s": per_second["bare"],
        **ratio(seconds["bare"], seconds["stream"]),
    }


def make_files(root: Path, count: int, size: tuple[int, int]) -> None:
    """Smooth colours with some noise, which JPEG makes about as large as photographs; a domain of one class."""
    draw = np.random.default_rng(0)
    for part, images in (("train", count), ("test", 1)):
        (root / "domain" / part / "class").mkdir(parents=True)
        for number in range(images):
            coarse = Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize(size[::-1])
            noisy = np.asarray(coarse, dtype=np.int16) + draw.integers(-12, 13, (*size, 3))
            image = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
            image.save(root / "domain" / part / "class" / f"{number}.jpg", quality=90)


def streamed(root: Path, workers: int, batch_size: int) -> Callable[[], None]:
    options = {"base_path": str(root), "num_workers": workers, "batch_size": batch_size, "device": "cpu"}
    stream = Data(resolve({"model": "sgd", "dataset": "dom-folder"} | options)).stream(torch.device("cpu"))

    def run() -> None:
        for batch in stream.batches(0, 0, 0):
            assert batch.images.shape[1:] == (3, 256, 256)

    return run


class Files(Dataset):
    def __init__(self, paths: list[Path]):
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            return STORED(image.convert("RGB")), 0


def bare(root: Path, workers: int, batch_size: int) -> Callable[[], None]:
    paths = sorted((root / "domain/train/class").iterdir())
    loader = DataLoader(Files(paths), batch_size, shuffle=True, num_workers=workers)

    def run() -> None:
        for images, _ in loader:
            assert images.shape[1:] == (3, 256, 256)

    return run
