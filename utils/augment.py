"""Batched augmentation of uint8 images on their device: every sample has its own crop and flip.

The draws are small and made on the host, addressed by (stream, step); the images are gathered in one operation.
Padding is black, before normalization, as torchvision's `RandomCrop(padding=...)` on images does.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from datasets.stream import StreamSpec
from utils.device import to_device
from utils.random import generator


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
        return torch.addcmul(self.shift, images.to(self.scale.dtype, memory_format=self.layout), self.scale)

    def __call__(self, images: torch.Tensor, stream: str, step: int) -> torch.Tensor:
        if self.padding or self.flip:
            images = self._crop_and_flip(images, generator(self.seed, f"augment/{stream}", step))
        return self.normalize(images)

    def _crop_and_flip(self, images: torch.Tensor, draw: np.random.Generator) -> torch.Tensor:
        count, channels, height, width = images.shape
        wide = width + 2 * self.padding
        rows = draw.integers(0, 2 * self.padding + 1, (count, 1)) + np.arange(height)
        columns = draw.integers(0, 2 * self.padding + 1, (count, 1)) + np.arange(width)
        if self.flip:
            columns = np.where(draw.random((count, 1)) < 0.5, columns[:, ::-1], columns)
        pixels = (rows[:, :, None] * wide + columns[:, None, :]).reshape(count, 1, -1)
        padded = F.pad(images, (self.padding,) * 4).flatten(2)
        index = to_device(pixels, torch.empty(0, dtype=torch.int64, device=images.device))
        return padded.gather(2, index.expand(-1, channels, -1)).view(count, channels, height, width)
