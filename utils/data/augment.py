"""Batched augmentation of uint8 images on their device: a list of parts, each with draws of its own for every sample.

The draws are small and made on the host, addressed by (stream, place); a GPU gathers all images in one operation.
Padding is black, before normalization, as torchvision's `RandomCrop(padding=...)` on images does. Parts may cut what
the network sees out of larger stored images; they then have a form without draws, for testing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional as F

from utils.data.random import generator
from utils.data.stream import StreamSpec
from utils.device import send_together


class Part(Protocol):
    """A step of augmentation. Its draws are whole numbers, so that those of all parts travel to the device as one."""

    rows: int  # numbers that it draws for a sample

    def draw(self, draw: np.random.Generator, count: int) -> np.ndarray:
        """(rows, count)."""

    def on_host(self, images: np.ndarray, drawn: np.ndarray) -> np.ndarray: ...

    def on_device(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor: ...

    def for_testing(self, images: torch.Tensor) -> torch.Tensor:
        """In place of all that is drawn."""

    def shape_of(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """That images of this shape have afterwards."""


class KeepsSize:
    """A part that leaves images alone in testing."""

    def for_testing(self, images):
        return images

    def shape_of(self, shape):
        return shape


@dataclass(frozen=True)
class Crop(KeepsSize):
    """A window of the image's own size out of the zero-padded image."""

    padding: int
    rows = 2

    def draw(self, draw, count):
        return draw.integers(0, 2 * self.padding + 1, (2, count))

    def on_host(self, images, drawn):
        """On a CPU the fastest way is the plainest: of every image, what the window shares with it."""
        shared, out = _overlaps(self.padding), np.zeros(images.shape, dtype=images.dtype)
        for target, source, row, column in zip(out, images, *drawn.tolist(), strict=True):
            (top, high), (left, wide) = shared[row], shared[column]
            target[:, top, left] = source[:, high, wide]
        return out

    def on_device(self, images, drawn):
        """All windows picked in one operation."""
        count, _, height, width = images.shape
        padded = F.pad(images, (self.padding,) * 4)
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: (samples, channels, rows, columns, h, w)
        return windows[torch.arange(count, device=images.device), :, drawn[0], drawn[1]]


@cache
def _overlaps(padding: int) -> list[tuple[slice, slice]]:
    """Where the window at each place meets the image along one axis: in the window, and in the image."""
    before = [(slice(shift, None), slice(None, -shift)) for shift in range(padding, 0, -1)]
    after = [(slice(None, -shift), slice(shift, None)) for shift in range(1, padding + 1)]
    return [*before, (slice(None), slice(None)), *after]


@dataclass(frozen=True)
class Flip(KeepsSize):
    """The mirror image of every second sample, on average."""

    rows = 1

    def draw(self, draw, count):
        return (draw.random(count) < 0.5)[None]

    def on_host(self, images, drawn):
        out = images.copy()
        for sample in np.flatnonzero(drawn[0]).tolist():
            out[sample] = images[sample, :, :, ::-1]
        return out

    def on_device(self, images, drawn):
        return torch.where(drawn[0].bool().view(-1, 1, 1, 1), images.flip(3), images)


@dataclass(frozen=True)
class RandomResizedCrop:
    """A window of a random area and aspect out of square images, brought to `size` x `size`; its middle for testing.

    Draws and pixels are those of torchvision's `RandomResizedCrop` with antialiasing: after ten windows that do not fit
    into the image, the whole of it.
    """

    size: int
    stored: int  # width and height of the images
    rows = 4  # top, left, height, width
    area, aspect, tries = (0.08, 1.0), (3 / 4, 4 / 3), 10

    def draw(self, draw, count):
        area = draw.uniform(*self.area, (self.tries, count)) * self.stored**2
        aspect = np.exp(draw.uniform(*np.log(self.aspect), (self.tries, count)))
        sides = np.rint(np.sqrt([area / aspect, area * aspect]))  # (height and width, tries, samples)
        fits = (sides <= self.stored).all(0)
        chosen = np.take_along_axis(sides, fits.argmax(0)[None, None], 1)[:, 0]
        chosen = np.where(fits.any(0), chosen, self.stored)
        corner = np.floor(draw.random((2, count)) * (self.stored - chosen + 1))
        return np.concatenate([corner, chosen])

    def on_host(self, images, drawn):
        size, out = (self.size, self.size), np.empty((*images.shape[:2], self.size, self.size), dtype=images.dtype)
        for target, source, (top, left, height, width) in zip(out, images, drawn.T.tolist(), strict=True):
            window = torch.from_numpy(source[None, :, top : top + height, left : left + width])
            target[:] = F.interpolate(window, size, mode="bilinear", antialias=True)[0].numpy()
        return out

    def on_device(self, images, drawn):
        """As products with a matrix for each axis and sample, rounded after either as on the host."""
        top, left, height, width = drawn
        across, down = (
            resizing(*along, self.stored, self.size).unsqueeze(1) for along in ((left, width), (top, height))
        )
        narrowed = (images.to(across.dtype) @ across.mT + 0.5).floor_()
        return (down @ narrowed + 0.5).to(images.dtype)

    def for_testing(self, images):
        """The middle, enlarged by nothing."""
        edge = (self.stored - self.size) // 2
        return images[:, :, edge : edge + self.size, edge : edge + self.size]

    def shape_of(self, shape):
        return (shape[0], self.size, self.size)


def resizing(start: torch.Tensor, length: torch.Tensor, side: int, size: int) -> torch.Tensor:
    """(N, size, side): what each pixel of a side takes part with in each of `size` pixels, which show the stretch of it
    from `start` on. The weights fall linearly with the distance, to 0 at one pixel of the coarser side."""
    pixels = torch.arange(side, device=start.device) - start[:, None, None]  # counted from where the stretch begins
    scale = (length / size)[:, None, None]
    centres = (torch.arange(size, device=start.device)[:, None] + 0.5) * scale
    weights = (1 - (pixels + 0.5 - centres).abs() / scale.clamp(min=1)).clamp(min=0)
    weights = weights * ((pixels >= 0) & (pixels < length[:, None, None]))
    return weights / weights.sum(2, keepdim=True)


class Augment:
    """`augment(images, stream, *place)` for training, `augment.normalize(images)` for testing.

    A training step has several batches to augment: `draw` for each, one copy of all to the device, then `apply`.
    """

    def __init__(
        self,
        spec: StreamSpec,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        layout: torch.memory_format = torch.contiguous_format,
    ):
        self.parts = spec.augmentation
        self.seed, self.layout = seed, layout
        shape = (1, -1, 1, 1)
        mean, std = (np.array(values).reshape(shape) for values in (spec.mean, spec.std))
        # (x / 255 - mean) / std as one multiplication and one addition
        self.scale = torch.tensor(1 / (255 * std), dtype=dtype, device=device)
        self.shift = torch.tensor(-mean / std, dtype=dtype, device=device)

    def normalize(self, images: torch.Tensor) -> torch.Tensor:
        """Without anything random."""
        for part in self.parts:
            images = part.for_testing(images)
        return self._normalized(images)

    def _normalized(self, images: torch.Tensor) -> torch.Tensor:
        return images.to(self.scale.dtype, memory_format=self.layout).mul_(self.scale).add_(self.shift)

    def __call__(self, images: torch.Tensor, stream: str, *place: int) -> torch.Tensor:
        drawn = self.draw(len(images), stream, *place)
        return self.apply(images, drawn, *send_together([drawn], images.device))

    def draw(self, count: int, stream: str, *place: int) -> np.ndarray:
        """(rows of all parts, count)."""
        if not self.parts:
            return np.empty((0, count), dtype=np.int64)
        draw = generator(self.seed, f"augment/{stream}", *place)
        return np.concatenate([part.draw(draw, count).astype(np.int64, copy=False) for part in self.parts])

    def apply(self, images: torch.Tensor, drawn: np.ndarray, drawn_on_device: torch.Tensor) -> torch.Tensor:
        first, on_host = 0, images.device.type == "cpu"
        found = images.numpy() if on_host else images
        for part in self.parts:
            mine = slice(first, first + part.rows)
            found = part.on_host(found, drawn[mine]) if on_host else part.on_device(found, drawn_on_device[mine])
            first += part.rows
        return self._normalized(torch.from_numpy(found) if on_host else found)
