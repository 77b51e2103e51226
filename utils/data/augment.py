"""Batched augmentation of uint8 images on their device: every sample has its own crop and flip.

The draws are small and made on the host, addressed by (stream, step); a GPU gathers all images in one operation.
Padding is black, before normalization, as torchvision's `RandomCrop(padding=...)` on images does.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch.nn import functional as F

from utils.data.stream import StreamSpec
from utils.device import to_device
from utils.data.random import generator


class Augment:
    """`augment(images, stream, step)` for training, `augment.normalize(images)` for testing."""

    def __init__(
        self,
        spec: StreamSpec,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        layout: torch.memory_format = torch.contiguous_format,
    ):
        self.padding, self.flip = spec.augmentation.padding, spec.augmentation.flip
        self.seed, self.layout = seed, layout
        shape = (1, -1, 1, 1)
        mean, std = (np.array(values).reshape(shape) for values in (spec.mean, spec.std))
        # (x / 255 - mean) / std as one multiplication and one addition
        self.scale = torch.tensor(1 / (255 * std), dtype=dtype, device=device)
        self.shift = torch.tensor(-mean / std, dtype=dtype, device=device)

    def normalize(self, images: torch.Tensor) -> torch.Tensor:
        return images.to(self.scale.dtype, memory_format=self.layout).mul_(self.scale).add_(self.shift)

    def __call__(self, images: torch.Tensor, stream: str, step: int) -> torch.Tensor:
        if self.padding or self.flip:
            images = self._crop_and_flip(images, generator(self.seed, f"augment/{stream}", step))
        return self.normalize(images)

    def _crop_and_flip(self, images: torch.Tensor, draw: np.random.Generator) -> torch.Tensor:
        count, places = len(images), 2 * self.padding + 1
        rows, columns = draw.integers(0, places, (2, count))
        flipped = draw.random(count) < 0.5 if self.flip else np.zeros(count, dtype=bool)
        pick = _pick_one_by_one if images.device.type == "cpu" else _pick_at_once
        return pick(images, self.padding, rows, columns, flipped)


def _pick_one_by_one(images: torch.Tensor, padding: int, rows, columns, flipped) -> torch.Tensor:
    """On a CPU the fastest way is the plainest: of every image, what the window shares with it."""
    sources, shared = images.numpy(), _overlaps(padding)
    out = np.zeros(sources.shape, dtype=sources.dtype)
    for target, source, row, column, flip in zip(
        out, sources, rows.tolist(), columns.tolist(), flipped.tolist(), strict=True
    ):
        (top, high), (left, wide) = shared[row], shared[column]
        if flip:
            target = target[:, :, ::-1]
        target[:, top, left] = source[:, high, wide]
    return torch.from_numpy(out)


@cache
def _overlaps(padding: int) -> list[tuple[slice, slice]]:
    """Where the window at each place meets the image along one axis: in the window, and in the image."""
    before = [(slice(shift, None), slice(None, -shift)) for shift in range(padding, 0, -1)]
    after = [(slice(None, -shift), slice(shift, None)) for shift in range(1, padding + 1)]
    return [*before, (slice(None), slice(None)), *after]


def _pick_at_once(images: torch.Tensor, padding: int, rows, columns, flipped) -> torch.Tensor:
    """One window per sample out of the padded image or out of its mirror image, picked in one operation."""
    count, _, height, width = images.shape
    sources = F.pad(images, (padding,) * 4)
    sources = torch.cat([sources, sources.flip(3)])
    # A window that is cropped and then mirrored lies on the other side of the mirror image.
    source, columns = np.arange(count) + count * flipped, np.where(flipped, 2 * padding - columns, columns)
    windows = sources.unfold(2, height, 1).unfold(3, width, 1)  # a view: (sources, channels, rows, columns, h, w)
    index = torch.empty(0, dtype=torch.int64, device=images.device)
    source, rows, columns = to_device(np.stack([source, rows, columns]), index)
    return windows[source, :, rows, columns]
