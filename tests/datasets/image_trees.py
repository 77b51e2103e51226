"""Small image files for tests of data sets that stream them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from utils.config.registry import DATASETS
from utils.run.build import StreamBuilder


def pixels(seed, side: int = 256) -> np.ndarray:
    """(side, side, 3): noise in blocks, which JPEG keeps well enough to tell images apart."""
    blocks = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return blocks.repeat(-(-side // 8), 0).repeat(-(-side // 8), 1)[:side, :side]


def save(path: Path, array: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, format="JPEG" if path.suffix == ".JPEG" else None)
    return path


def names(files) -> list[str]:
    return [os.fsdecode(name) for name in files.names]


def stream_of(config):
    return StreamBuilder(config).stream(torch.device("cpu"))


def facts(name: str):
    return DATASETS.get(name).build
