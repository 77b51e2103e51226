"""The step that the benchmark compares with: images one by one through PIL, a buffer filled in a Python loop.

This is the usual way, and that of the published runs: a DataLoader decodes and augments every image on its own and
also returns it unaugmented; the buffer keeps those as float tensors, its reservoir decides sample by sample, and a
replay draw turns each of its images into a PIL image again to augment it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from models.er_ace import closed_classes

AUGMENT = transforms.Compose(
    [
        transforms.RandomCrop(32, padding=4),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.5,) * 3, (0.25,) * 3),
    ]
)
AUGMENT_TENSOR = transforms.Compose([transforms.ToPILImage(), AUGMENT])


class Images(Dataset):
    def __init__(self, images: torch.Tensor, labels: torch.Tensor):
        self.images, self.labels = images.permute(0, 2, 3, 1).numpy(), labels.numpy()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int):
        image = Image.fromarray(self.images[index])
        return AUGMENT(image), int(self.labels[index]), transforms.functional.to_tensor(image)


class LoopBuffer:
    def __init__(self, size: int):
        self.size, self.seen = size, 0
        self.images, self.labels = torch.zeros(size, 3, 32, 32), torch.zeros(size, dtype=torch.int64)

    def add(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        for image, label in zip(images, labels, strict=True):
            slot = self.seen if self.seen < self.size else random.randrange(self.seen + 1)
            self.seen += 1
            if slot < self.size:
                self.images[slot], self.labels[slot] = image, label

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = np.random.choice(min(self.seen, self.size), count, replace=False)  # noqa: NPY002 (the usual way)
        return torch.stack([AUGMENT_TENSOR(image) for image in self.images[chosen]]), self.labels[chosen]


def pil_step(net: nn.Module, images: torch.Tensor, labels: torch.Tensor, batch: int, memory: int) -> Callable[[], None]:
    """One ER-ACE step of the second task."""
    loader = DataLoader(Images(images, labels), batch_size=batch, shuffle=True)
    batches: Iterator = cycle_batches(loader)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03)
    buffer = LoopBuffer(memory)
    while buffer.seen < memory:
        _, targets, plain = next(batches)
        buffer.add(plain, targets)

    def run() -> None:
        inputs, targets, plain = next(batches)
        logits = net(inputs)
        closed = closed_classes(targets, targets.max(), logits.shape[1])
        loss = F.cross_entropy(logits.masked_fill(closed, -1e9), targets)
        replayed, their_targets = buffer.draw(batch)
        loss = loss + F.cross_entropy(net(replayed), their_targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        buffer.add(plain, targets)

    return run


def cycle_batches(loader: DataLoader) -> Iterator:
    for _ in cycle([None]):
        yield from loader
