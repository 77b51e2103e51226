"""`perm-digits`: Permuted MNIST in miniature, on the embedded digits of `seq-digits` in their own size of 8x8 pixels.

python main.py --model derpp --norm adab2n --dataset perm-digits
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from datasets.dataset import DOMAIN_OPTIONS, Config, RawData
from datasets.permuted import Permuted
from datasets.seq_digits import CONTENT, SeqDigits
from utils.config.options import Rule
from utils.config.registry import DATASETS


@DATASETS.register(
    "perm-digits",
    help="Permuted MNIST's embedded twin, 20 tasks of all ten digits",
    options=DOMAIN_OPTIONS,
    rules=(
        Rule({"n_tasks": 20, "buffer_size": 200, "lr": 0.1}),
        Rule({"alpha": 1.0, "beta": 0.5}, when={"model": "derpp"}),
    ),
    backbone="mlp",
)
class PermDigits(Permuted):
    name = "perm-digits"
    image_shape = (1, 8, 8)
    mean, std = (0.0,), (1.0,)

    def class_sizes(self, config: Config) -> tuple[np.ndarray, np.ndarray]:
        return SeqDigits().class_sizes(config)

    def source(self, config: Config) -> str:
        return SeqDigits().source(config)

    def fingerprint(self, config: Config) -> str:
        return CONTENT

    def read(self, config: Config) -> RawData:
        doubled = SeqDigits().read(config)
        return replace(
            doubled,
            train_images=doubled.train_images[:, :, ::2, ::2],
            test_images=doubled.test_images[:, :, ::2, ::2],
        )
