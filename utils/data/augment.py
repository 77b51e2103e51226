"""Batched augmentation of uint8 images on their device: a list of parts, each with its own draws for every sample.

Draws are small and made on the host, addressed by (stream, place). Padding is black, before normalization, as in
torchvision's `RandomCrop(padding=...)`. A part may crop the network's input from a larger stored image.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from utils.data.random import generator
from utils.data.stream import Part, StreamSpec
from utils.device import send_together


@dataclass(frozen=True)
class Crop(Part):
    """A random crop of the image's own size from the zero-padded image."""

    padding: int
    rows: ClassVar[int] = 2

    def draw(self, draw: np.random.Generator, count: int) -> np.ndarray:
        return draw.integers(0, 2 * self.padding + 1, (2, count))

    def on_host(self, images: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """Copy the windows out of padded images, one by one."""
        (count, channels, height, width), edge = images.shape, self.padding
        padded = np.zeros((count, channels, height + 2 * edge, width + 2 * edge), dtype=images.dtype)
        padded[:, :, edge : edge + height, edge : edge + width] = images
        out = np.empty_like(images)
        for target, source, row, column in zip(out, padded, *drawn.tolist(), strict=True):
            target[:] = source[:, row : row + height, column : column + width]
        return out

    def on_device(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """Gather all windows in one operation."""
        count, _, height, width = images.shape
        padded = F.pad(images, (self.padding,) * 4)
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: (samples, channels, rows, columns, h, w)
        return windows[torch.arange(count, device=images.device), :, drawn[0], drawn[1]]


@dataclass(frozen=True)
class Flip(Part):
    """A horizontal flip of every second sample, on average."""

    rows: ClassVar[int] = 1

    def draw(self, draw: np.random.Generator, count: int) -> np.ndarray:
        return (draw.random(count) < 0.5)[None]

    def on_host(self, images: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        out = images.copy()
        for sample in np.flatnonzero(drawn[0]).tolist():
            out[sample] = images[sample, :, :, ::-1]
        return out

    def on_device(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        return torch.where(drawn[0].bool().view(-1, 1, 1, 1), images.flip(3), images)


@dataclass(frozen=True)
class RandomResizedCrop(Part):
    """A crop of random area and aspect from square images, resized to `size` x `size`. In testing, the middle.

    Draws and pixels are those of torchvision's `RandomResizedCrop` with antialiasing. If ten windows do not fit into
    the image, it takes the whole image.
    """

    size: int
    stored: int  # width and height of the images
    rows: ClassVar[int] = 4  # top, left, height, width
    area: ClassVar[tuple[float, float]] = (0.08, 1.0)
    aspect: ClassVar[tuple[float, float]] = (3 / 4, 4 / 3)
    tries: ClassVar[int] = 10

    def draw(self, draw: np.random.Generator, count: int) -> np.ndarray:
        area = draw.uniform(*self.area, (self.tries, count)) * self.stored**2
        low, high = np.log(self.aspect)
        aspect = np.exp(draw.uniform(low, high, (self.tries, count)))
        sides = np.rint(np.sqrt([area / aspect, area * aspect]))  # (height and width, tries, samples)
        fits = (sides <= self.stored).all(0)
        chosen = np.take_along_axis(sides, fits.argmax(0)[None, None], 1)[:, 0]
        chosen = np.where(fits.any(0), chosen, self.stored)
        corner = np.floor(draw.random((2, count)) * (self.stored - chosen + 1))
        return np.concatenate([corner, chosen])

    def on_host(self, images: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        size, out = (self.size, self.size), np.empty((*images.shape[:2], self.size, self.size), dtype=images.dtype)
        for target, source, (top, left, height, width) in zip(out, images, drawn.T.tolist(), strict=True):
            window = torch.from_numpy(source[None, :, top : top + height, left : left + width])
            target[:] = F.interpolate(window, size, mode="bilinear", antialias=True)[0].numpy()
        return out

    def on_device(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """Multiply by one matrix per axis and sample, rounding after each as on the host."""
        top, left, height, width = drawn
        across = resizing(left, width, self.stored, self.size).unsqueeze(1)
        down = resizing(top, height, self.stored, self.size).unsqueeze(1)
        narrowed = (images.to(across.dtype) @ across.mT + 0.5).floor_()
        return (down @ narrowed + 0.5).to(images.dtype)

    def for_testing(self, images: torch.Tensor) -> torch.Tensor:
        edge = (self.stored - self.size) // 2
        return images[:, :, edge : edge + self.size, edge : edge + self.size]

    def shape_of(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        return (shape[0], self.size, self.size)


def resizing(start: torch.Tensor, length: torch.Tensor, side: int, size: int) -> torch.Tensor:
    """Return matrices (N, size, side) that resize `length` pixels of a side, from `start` on, to `size` pixels.

    Weights fall linearly with the distance, to 0 at one pixel of the coarser resolution.
    """
    pixels = torch.arange(side, device=start.device) - start[:, None, None]  # counted from the start of the part
    scale = (length / size)[:, None, None]
    centres = (torch.arange(size, device=start.device)[:, None] + 0.5) * scale
    weights = (1 - (pixels + 0.5 - centres).abs() / scale.clamp(min=1)).clamp(min=0)
    weights = weights * ((pixels >= 0) & (pixels < length[:, None, None]))
    return weights / weights.sum(2, keepdim=True)


class Augment:
    """Makes the network's inputs from stored images: call it in training, and `normalize` in testing.

    A training step augments several batches: it calls `draw` for each, copies all draws to the device at once, and then
    calls `apply`.
    """

    def __init__(self, spec: StreamSpec, seed: int, device: torch.device, dtype: torch.dtype):
        self.parts, self.seed = spec.augmentation, seed
        mean, std = (np.array(values).reshape(1, -1, 1, 1) for values in (spec.mean, spec.std))
        # (x / 255 - mean) / std as one multiplication and one addition
        self.scale = torch.tensor(1 / (255 * std), dtype=dtype, device=device)
        self.shift = torch.tensor(-mean / std, dtype=dtype, device=device)

    def normalize(self, images: torch.Tensor) -> torch.Tensor:
        """Return the network's inputs in testing."""
        for part in self.parts:
            images = part.for_testing(images)
        return self._normalized(images)

    def _normalized(self, images: torch.Tensor) -> torch.Tensor:
        return images.to(self.scale.dtype, memory_format=torch.contiguous_format).mul_(self.scale).add_(self.shift)

    def __call__(self, images: torch.Tensor, stream: str, *place: int) -> torch.Tensor:
        drawn = self.draw(len(images), stream, *place)
        return self.apply(images, drawn, *send_together([drawn], images.device))

    def draw(self, count: int, stream: str, *place: int) -> np.ndarray:
        """Return the draws of all parts for `count` images, as an array (rows, count)."""
        if not self.parts:
            return np.empty((0, count), dtype=np.int64)
        draw = generator(self.seed, f"augment/{stream}", *place)
        return np.concatenate([part.draw(draw, count).astype(np.int64, copy=False) for part in self.parts])

    def apply(self, images: torch.Tensor, drawn: np.ndarray, drawn_on_device: torch.Tensor) -> torch.Tensor:
        """Return the network's inputs in training, given draws on the host and on the device."""
        row = 0
        for part in self.parts:
            rows = slice(row, row + part.rows)
            if images.device.type == "cpu":
                images = torch.from_numpy(part.on_host(images.numpy(), drawn[rows]))
            else:
                images = part.on_device(images, drawn_on_device[rows])
            row += part.rows
        return self._normalized(images)
